"""The wires of other servers' clients: thin adapters over the same pipeline, limits and metrics, a file each."""

import os

from starlette.routing import BaseRoute

from service.http.problems import ErrorWriter, problem_response
from service.http.wires import cloud, huggingface, oip, openai, rerank, tei
from service.http.wires.wire import Wire
from service.settings import ServeSettings

WIRES: dict[str, Wire] = {
    "rerank": rerank.WIRE,
    "cloud": cloud.WIRE,
    "openai": openai.WIRE,
    "tei": tei.WIRE,
    "huggingface": huggingface.WIRE,
    "oip": oip.WIRE,
}
"""Wires by their names in the setting `wires`; of two that own a path, the first writes its errors."""


class Wires:
    """The wires that are on."""

    def __init__(self, settings: ServeSettings) -> None:
        """Take those that the setting names."""
        self.on = [wire for name, wire in WIRES.items() if settings.has_wire(name)]
        if settings.has_wire("cloud") and (wire := cloud.vertex(os.environ)) is not None:
            self.on.append(wire)
        self.replaced: dict[str, BaseRoute] = {}
        """Path → a route that answers wires too, in place of this service's own."""
        has_tei, has_rerank = settings.has_wire("tei"), settings.has_wire("rerank")
        if has_tei or has_rerank:
            self.replaced["/rerank"] = rerank.by_shape(has_tei=has_tei, has_rerank=has_rerank)

    def error_writer(self, path: str) -> ErrorWriter:
        """Return what writes the errors of a path."""
        return next((wire.write_error for wire in self.on if wire.owns(path)), problem_response)

    @property
    def keyless_routes(self) -> list[BaseRoute]:
        """Return the routes that need no key."""
        return [route for wire in self.on for route in wire.keyless_routes]
