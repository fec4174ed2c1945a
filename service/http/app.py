"""The application: `create_app(settings, open_models)` builds it; its lifespan loads and closes the models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from service.http import admin, openapi
from service.http.authorise import Authorisation
from service.http.compat import CompatibleApis
from service.http.lifecycle import OpenModels, Service
from service.http.middleware import UNCOUNTED, RequestMiddleware
from service.http.operations import operations
from service.settings import ServeSettings
from service.tasks.table import TASKS
from service.web.pages import ASSETS as PAGE_FILES
from service.web.pages import page_routes, with_header

if TYPE_CHECKING:
    from service.http.tracing import Tracing

ASSETS = "/docs/assets"
KEYLESS = UNCOUNTED | {"/", "/status", "/docs", "/openapi.json", ASSETS, f"{PAGE_FILES}/{{name}}"}
"""Paths of this service's own routes that need no key to GET: probes, and pages, which ask for a key themselves."""


CORS_SENT = (
    *("Authorization", "Content-Type", "X-API-Key", "X-Request-Id", "X-Timeout-Ms"),
    *("Traceparent", "Tracestate"),
)
CORS_READ = (
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "Retry-After",
    "Server-Timing",
    "X-Request-Id",
)
"""Headers that pages of other sites may send, and read."""


class Application(FastAPI):
    """FastAPI with one middleware, and with a documented way to send API keys."""

    service: Service
    keys: Authorisation
    places: Path | None = None
    """File in which the processes of a service count a key's requests in progress."""
    compat: CompatibleApis
    tracing: "Tracing | None" = None

    def build_middleware_stack(self) -> ASGIApp:
        """Wrap the router in RequestMiddleware, and with `cors_origins` that in what answers browsers.

        FastAPI's own layers handle errors, which RequestMiddleware does, and close uploaded files, which no route takes.
        Its routing costs about 23 µs a request; with its layers and request handler 74 µs (docs/decisions/0012).
        """
        known_models = self.service.known_models
        self.keys = Authorisation(self.service.settings, self.service.metrics, known_models, self.places)
        app = RequestMiddleware(
            self.router,
            self.service,
            paths=frozenset(str(getattr(route, "path", "")) for route in self.routes),
            error_writer=self.compat.error_writer,
            is_hidden=self.is_hidden,
            needs_no_key=self.needs_no_key,
            record_spans=self.tracing.record if self.tracing is not None else None,
            keys=self.keys,
        )
        origins = self.service.settings.cors_origins
        return (
            CORSMiddleware(app, origins, ("GET", "POST"), CORS_SENT, expose_headers=CORS_READ)
            if origins
            else app
        )

    def is_hidden(self, scope: Scope) -> bool:
        """Tell whether only the admin port has a request's path, and the request came to the other."""
        port = self.service.settings.admin_port
        is_other = port is not None and scope["server"][1] != port
        return is_other and admin.OPERATORS.fullmatch(scope["path"]) is not None

    def needs_no_key(self, scope: Scope) -> bool:
        """Tell whether the route that will answer a request needs no key, or one of its own."""
        if scope["method"] != "GET":
            return scope["method"] == "POST" and admin.PATHS.fullmatch(scope["path"]) is not None
        found = next((route for route in self.routes if route.matches(scope)[0] is Match.FULL), None)
        return found is not None and self._needs_no_key(found)

    def _needs_no_key(self, route: BaseRoute) -> bool:
        return getattr(route, "path", None) in KEYLESS or route in self.compat.keyless_routes

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, built once."""
        if self.openapi_schema is None:
            document = super().openapi()
            open_paths = {
                str(getattr(route, "path", "")) for route in self.routes if self._needs_no_key(route)
            }
            openapi.complete(document, open_paths, with_key=self.service.settings.needs_key)
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(settings: ServeSettings, open_models: OpenModels) -> Application:
    """Build the service without loading anything. Its lifespan loads the models; until then requests get a 503."""
    compat = CompatibleApis(settings)
    app = Application(
        title="bert-serve",
        version=_version(),
        description="Fine-tuned BERT over HTTP. Errors are application/problem+json (RFC 9457).",
        openapi_tags=[*openapi.TAGS, *compat.tags],
        lifespan=_lifespan,
        servers=[{"url": "."}],  # relative to the document, which a proxy may serve under a path
        docs_url=None,
        redoc_url=None,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # 6 µs a request to find that it is not set up
        redirect_slashes=False,  # it would build an address from the client's Host header
    )
    app.compat = compat
    app.service = app.state.service = Service(settings, open_models)
    if settings.otel_endpoint:
        from service.http.tracing import Tracing  # an extra, whose import takes time

        app.tracing = Tracing(settings, app.service.metrics)
    app.router.routes += [*compat.routes_of(TASKS), *operations.routes, *admin.admin.routes, *compat.routes]
    _add_docs(app, with_pages=settings.page)
    if settings.page:
        app.router.routes += page_routes()
    else:
        app.add_route("/", _to_docs)
    return app


@asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    # Built in a request, the OpenAPI document would hold the event loop for 20 ms.
    async with app.service.lifespan(prepare=app.openapi):
        yield
    if app.tracing is not None:
        await app.tracing.close()


def _add_docs(app: FastAPI, *, with_pages: bool) -> None:
    """Serve /docs, from local files if fastapi-offline is installed, else from a CDN.

    Its addresses are relative, so that it works behind a proxy that serves it under a path.
    """
    assets, local, files = _swagger_assets(), dict[str, Any](), ASSETS.removeprefix("/")
    if assets is not None:
        app.mount(ASSETS, StaticFiles(directory=assets))
        local = {
            "swagger_js_url": f"{files}/swagger-ui-bundle.js",
            "swagger_css_url": f"{files}/swagger-ui.css",
            "swagger_favicon_url": f"{files}/favicon.png",
        }
    html = bytes(
        get_swagger_ui_html(openapi_url="openapi.json", title="API · bert-serve", **local).body
    ).decode()
    page = HTMLResponse(with_header(html) if with_pages else html)

    async def docs(_: Request) -> Response:
        return page

    app.add_route("/docs", docs)


async def _to_docs(_: Request) -> Response:
    return RedirectResponse("docs")


def _swagger_assets() -> Path | None:
    found = find_spec("fastapi_offline")
    folders = list(found.submodule_search_locations or []) if found is not None else []
    return Path(folders[0]) / "static" if folders else None


def _version() -> str:
    try:
        return version("bert-train-serve")
    except PackageNotFoundError:  # run from a clone that is not installed
        return "0"
