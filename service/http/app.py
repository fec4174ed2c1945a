"""The application. `create_app(settings)` builds everything; the lifespan loads it and lets it go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http import openapi
from service.http.endpoints import TASK_ENDPOINTS
from service.http.lifecycle import OpenModels, Service
from service.http.middleware import RequestMiddleware
from service.http.problems import problem_of, problem_response
from service.logs import LOGGER
from service.pipeline.request_context import RequestContext
from service.settings import ServeSettings

ASSETS = "/docs/assets"
HANDLERS = {endpoint.path: endpoint.handler for endpoint in TASK_ENDPOINTS}
Failed = Callable[[Exception], None]


def log_failure(error: Exception) -> None:
    """Say why the models could not be loaded."""
    LOGGER.error("the models could not be loaded: %s", error, exc_info=error)


class Application(FastAPI):
    """FastAPI, but that its middleware and routing see no request to a task.

    They cost more than all else that is done for it beside the engine, and none of it is needed: a path is looked up, and
    handlers read bodies themselves.
    """

    service: Service
    tasks: ASGIApp
    """Answers a POST to a path of HANDLERS."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in HANDLERS:
            scope["app"] = self
            await self.tasks(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    settings: ServeSettings,
    *,
    open_models: OpenModels,
    on_ready: Callable[[], None] = lambda: None,
    on_failure: Failed = log_failure,
) -> Application:
    """Build the service. Nothing is loaded before its lifespan begins, and requests get 503 until it is.

    `open_models` brings the models, `on_ready` is called when it can answer, `on_failure` with what kept it from loading.
    """
    service = Service(settings, open_models)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(app, on_ready, on_failure))
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.wait([loading])
            await service.close()

    app = Application(
        title="bert-serve",
        version=_version(),
        description="Fine-tuned BERT over HTTP. Errors are application/problem+json (RFC 9457).",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would make an address of the Host header, whoever wrote that
    )
    app.service = app.state.service = service
    openapi.add_routes(app)
    _add_docs(app, with_key=settings.api_key is not None)
    app.add_exception_handler(HTTPException, _http_problem)
    paths = frozenset(str(getattr(route, "path", "")) for route in app.routes)
    observed = partial(
        RequestMiddleware,
        metrics=service.metrics,
        settings=settings,
        paths=paths,
        is_stopping=lambda: service.is_stopping,
    )
    app.add_middleware(observed)
    app.tasks = observed(_answer_task)
    return app


async def _answer_task(scope: Scope, receive: Receive, send: Send) -> None:
    response = await HANDLERS[scope["path"]](Request(scope, receive))
    await response(scope, receive, send)


async def _load(app: Application, on_ready: Callable[[], None], on_failure: Failed) -> None:
    try:
        await asyncio.to_thread(app.openapi)  # later it would hold up requests for 20 ms
        await app.service.load()
    except Exception as error:
        on_failure(error)
    else:
        on_ready()


def _add_docs(app: FastAPI, *, with_key: bool) -> None:
    """Serve /docs, from local files if fastapi-offline is installed, else from a CDN."""
    assets = _swagger_assets()
    if assets is None:
        page = get_swagger_ui_html(openapi_url="/openapi.json", title="bert-serve")
    else:
        app.mount(ASSETS, StaticFiles(directory=assets))
        page = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="bert-serve",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )

    async def docs(_: Request) -> Response:
        return page

    async def root(_: Request) -> Response:
        return RedirectResponse("/docs")

    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/", root, include_in_schema=False)
    app.openapi = lambda: _document(app, with_key=with_key)  # type: ignore[method-assign]


def _document(app: FastAPI, *, with_key: bool) -> dict[str, object]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.document(app, with_key=with_key)
    return app.openapi_schema


def _swagger_assets() -> Path | None:
    found = find_spec("fastapi_offline")
    folders = list(found.submodule_search_locations or []) if found is not None else []
    return Path(folders[0]) / "static" if folders else None


async def _http_problem(request: Request, error: Exception) -> Response:
    """Answer what the router refuses (404, 405) like everything else."""
    call: RequestContext = request.scope["state"]["call"]
    return problem_response(problem_of(error), call.request_id)


def _version() -> str:
    try:
        return version("bert-train-serve")
    except PackageNotFoundError:  # run from a clone that is not installed
        return "0"
