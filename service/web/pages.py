"""Serve the pages `/` and `/status` and their files from memory."""

from collections.abc import Mapping
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "static"
ASSETS = "/web"
"""Path under which the files of the pages are served."""
PAGES = {"/": "index.html", "/status": "status.html"}
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types lit-html",
    )
)
"""Content-Security-Policy: nothing inline, nothing evaluated, nothing from another host."""
HEADERS = {
    "Cache-Control": "no-cache",  # ask again each time: the ETag makes that cheap, and an upgrade shows at once
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class StaticFile:
    """A file in memory, with its ETag."""

    def __init__(self, path: Path) -> None:
        """Read the file."""
        self._body = path.read_bytes()
        self._etag = f'"{sha256(self._body).hexdigest()[:32]}"'
        self._headers = HEADERS | {"ETag": self._etag, "Content-Type": MEDIA_TYPES[path.suffix]}

    def respond(self, headers: Mapping[str, str]) -> Response:
        """Return the 200, or the 304 for a client that has this content."""
        known = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
        if self._etag in known:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=self._headers)
        return Response(self._body, headers=self._headers)


def with_header(docs: str) -> str:
    """Return Swagger UI's page with the header, the fonts and the theme of the other pages."""
    head = (
        f'<link rel="stylesheet" href="{ASSETS[1:]}/page.css"><script src="{ASSETS[1:]}/theme.js"></script>'
        f'<script type="module" src="{ASSETS[1:]}/shell.js"></script>'
    )
    # Before Swagger UI's own style sheet, which wins where both have a rule.
    docs = docs.replace("<html>", '<html lang="en">').replace("<head>", f"<head>{head}")
    return docs.replace("<body>", '<body class="docs"><div id="header"></div>').replace(
        '<div id="swagger-ui">', '<div id="swagger-ui" role="main">'
    )


def page_routes() -> list[Route]:
    """Read all files and return the routes of the pages.

    A path names a key of a dict and never a place on the disk.
    """
    files = {path.name: StaticFile(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}

    async def page(request: Request) -> Response:
        return files[PAGES[request.scope["path"]]].respond(request.headers)

    async def asset(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return file.respond(request.headers)

    pages = [Route(path, page) for path in PAGES]
    return [*pages, Route(f"{ASSETS}/{{name}}", asset)]
