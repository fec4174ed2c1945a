"""A request's headers, as the server hands them over: pairs of bytes, the names in small letters."""

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name, None without one; looked for as it is, nothing is decoded but its value."""
    for key, value in scope["headers"]:
        if key == name:
            found: str = value.decode("latin-1")
            return found
    return None
