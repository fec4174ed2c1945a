"""The task endpoints, with the examples of their schemas."""

from dataclasses import dataclass
from typing import Any

from service.http.routes import tasks
from service.http.schemas import Schema
from service.http.task_route import TaskRoute


@dataclass(frozen=True)
class TaskEndpoint:
    path: str
    request: type[Schema]
    response: type[Schema]

    @property
    def sent(self) -> dict[str, Any]:
        return self.request.example

    @property
    def results(self) -> list[dict[str, Any]]:
        return list(self.response.example["results"])

    @property
    def tokens(self) -> int:
        return int(self.response.example["usage"]["tokens"])

    @property
    def model(self) -> str:
        return str(self.response.example["model"])


TASK_ENDPOINTS = [
    TaskEndpoint(route.path, route.schema, route.response_model)
    for route in tasks.routes
    if isinstance(route, TaskRoute)
]
