"""Triton's model repository extension of the Open Inference Protocol: what could be served, load and unload."""

from typing import TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.http.admin import check_admin, manage
from service.http.compat.base import CompatibleApi, answer
from service.http.compat.requests import CompatibleRequest, refused, validate
from service.http.lifecycle import service_of
from service.http.request_body import read_body, read_json
from service.pipeline.inputs import RequestContext
from service.scheduling.scheduler_protocol import LOAD, UNLOAD

Body = TypeVar("Body", bound=CompatibleRequest)
_READY = {"name": "sentiment", "version": "1", "state": "READY", "reason": ""}


class IndexRequest(CompatibleRequest):
    """Which models to list."""

    ready: bool = False


class ChangeRequest(CompatibleRequest):
    """How to load or unload a model."""

    parameters: dict[str, object] = Field(default_factory=dict)


def add_repository(api: CompatibleApi) -> None:
    """Add the extension's endpoints to the protocol's."""

    @api.order("/v2/repository/index", answer=[_READY])
    async def index(request: Request) -> Response:
        """List what is served, and what is not with the reason."""
        service = service_of(request)
        await check_admin(request)
        only_ready = (await _body(request, IndexRequest)).ready
        registry = service.loaded.registry
        found = [
            {"name": model.name, "version": model.bundle.manifest.version, "state": "READY", "reason": ""}
            for model in registry.models.values()
            if service.why_model_not_ready(model) is None
        ]
        others = (*registry.left_out, *registry.unloaded, *registry.failed)
        unavailable = [
            {"name": each.name, "version": "", "state": "UNAVAILABLE", "reason": each.reason}
            for each in others
        ]
        return answer(found if only_ready else found + unavailable)

    @api.order("/v2/repository/models/{model}/load", answer={"name": "sentiment", "load": True})
    async def load(request: Request) -> Response:
        """Serve what lies in a model's folder now."""
        return await _change(request, LOAD)

    @api.order("/v2/repository/models/{model}/unload", answer={"name": "sentiment", "unload": True})
    async def unload(request: Request) -> Response:
        """Serve a model no more."""
        return await _change(request, UNLOAD)


async def _change(request: Request, action: str) -> Response:
    await check_admin(request)
    parameters = (await _body(request, ChangeRequest)).parameters
    if unknown := parameters.keys() - {"unload_dependents"}:
        raise refused(f"parameters.{min(unknown)}", "is not taken: a bundle says itself how it is served")
    name = str(request.path_params["model"])
    await manage(request, action, name)
    return answer({"name": name, action: True})


async def _body(request: Request, schema: type[Body]) -> Body:
    """Return the body; an empty one is an empty object."""
    service, context = service_of(request), request.scope["state"]["context"]
    assert isinstance(context, RequestContext)
    context.timeout_ms = service.settings.request_timeout_ms
    raw = await read_body(request, service.settings, context, any_type=True)
    return validate(schema, read_json(raw, service.settings.max_texts_per_request) if raw else {})
