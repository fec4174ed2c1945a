"""Compatible APIs: those of other servers' clients, thin adapters over the same tasks, limits and metrics, a file each."""

import os
from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from service.http.compat import cloud, huggingface, oip, openai, rerank, tei
from service.http.compat.base import CompatibleApi
from service.http.problems import ErrorWriter, problem_response
from service.http.route import TaskRoute, task_routes
from service.settings import ServeSettings
from service.tasks.task import ServedTask

APIS: dict[str, CompatibleApi] = {
    "rerank": rerank.API,
    "cloud": cloud.API,
    "openai": openai.API,
    "tei": tei.API,
    "huggingface": huggingface.API,
    "oip": oip.API,
}
"""By their names in the setting `wires`; of two that own a path, the first writes its errors."""


class CompatibleApis:
    """The compatible APIs that are on."""

    def __init__(self, settings: ServeSettings) -> None:
        """Take those that the setting names."""
        self._on = [api for name, api in APIS.items() if settings.has_wire(name)]
        if settings.has_wire("cloud") and (api := cloud.vertex(os.environ)) is not None:
            self._on.append(api)
        self.tags = [api.tag for api in self._on]
        self.routes = [route for api in self._on for route in api.routes]
        self.keyless_routes = [route for api in self._on for route in api.keyless_routes]
        """Those that need no key."""
        self._own_routes: dict[str, type[TaskRoute]] = {}
        """Path of a task → class of its route, where that answers compatible APIs too."""
        has_tei, has_rerank = settings.has_wire("tei"), settings.has_wire("rerank")
        if has_tei or has_rerank:
            self._own_routes["/rerank"] = rerank.by_shape(has_tei=has_tei, has_rerank=has_rerank)

    def routes_of(self, tasks: Sequence[ServedTask[Any]]) -> list[BaseRoute]:
        """Return the routes of this service's own endpoints."""
        return [
            route
            for task in tasks
            for route in task_routes([task], self._own_routes.get(task.path, TaskRoute))
        ]

    def error_writer(self, path: str) -> ErrorWriter:
        """Return what writes the errors of a path."""
        return next((api.write_error for api in self._on if api.owns(path)), problem_response)
