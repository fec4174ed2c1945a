"""Endpoints that change what is served: load, unload and roll back a model. They need a key of their own."""

import hmac
import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bert.errors import NotReadyError
from service.http import openapi
from service.http.authorise import sent_key
from service.http.lifecycle import service_of
from service.http.problems import ProblemError
from service.http.request_log import ALWAYS
from service.scheduling.scheduler_protocol import LOAD, ROLLBACK, UNLOAD
from service.tasks.schema import Schema

admin = APIRouter(tags=["service"], route_class=openapi.DirectRoute)
PATHS = re.compile(r"/models/[^/]+/(load|unload|rollback)|/v2/repository/(index|models/[^/]+/(load|unload))")
"""Paths of all endpoints that `check_admin` guards; the key of other requests does not count there."""
OPERATORS = re.compile(rf"/metrics|{PATHS.pattern}")
"""Paths that are on the admin port only, where there is one."""
_ERRORS = openapi.problems(403, 404, 409, 429, 503)
_NAME = {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}


class ManagedResponse(Schema):
    """The model that was changed, and its new status."""

    model: str
    status: str


def _example(status: str) -> dict[int | str, dict[str, object]]:
    return openapi.success({"model": "sentiment", "status": status}) | _ERRORS


@admin.post(
    "/models/{name}/load", response_model=ManagedResponse, responses=_example("loaded"), openapi_extra=_NAME
)
async def load(request: Request) -> Response:
    """Serve what lies in a model's folder now. If that fails, what is served goes on."""
    return await _managed(request, LOAD, "loaded")


@admin.post(
    "/models/{name}/unload",
    response_model=ManagedResponse,
    responses=_example("unloaded"),
    openapi_extra=_NAME,
)
async def unload(request: Request) -> Response:
    """Serve a model no more, and free its memory."""
    return await _managed(request, UNLOAD, "unloaded")


@admin.post(
    "/models/{name}/rollback",
    response_model=ManagedResponse,
    responses=_example("rolled_back"),
    openapi_extra=_NAME,
)
async def rollback(request: Request) -> Response:
    """Serve again what was served before the last change of a model."""
    return await _managed(request, ROLLBACK, "rolled_back")


async def _managed(request: Request, action: str, status: str) -> Response:
    name = str(request.path_params["name"])
    await manage(request, action, name)
    return JSONResponse(ManagedResponse(model=name, status=status).model_dump())


async def manage(request: Request, action: str, name: str) -> None:
    """Load, unload or roll back a model. Raises ProblemError with 403 if the key may not, and what `Manage` raises."""
    service = service_of(request)
    await check_admin(request)
    request.scope["state"][ALWAYS] = True
    run = service.loaded.manage
    if run is None:
        raise NotReadyError("the models of this service cannot be changed while it runs")
    await run(action, name)


async def check_admin(request: Request) -> None:
    """Raise the 403 unless the request's key may change models."""
    settings, sent = service_of(request).settings, sent_key(request.scope)
    own = settings.admin_api_key
    if own is not None and hmac.compare_digest(sent.encode(), own.get_secret_value().encode()):
        return
    grant = await request.app.keys.find(request.scope)
    if grant is not None and grant.rules.admin:
        request.state.context.grant = grant
        return
    if own is None and settings.api_keys_file is None:
        detail = "models are changed over HTTP only where the setting admin_api_key is set"
        raise ProblemError(403, "forbidden", detail)
    detail = "send the key of admin_api_key, or one with `admin`, as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
    raise ProblemError(403, "forbidden", detail, reason="unauthorized")
