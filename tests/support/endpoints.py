"""The task endpoints, with the examples of their schemas."""

from dataclasses import dataclass
from typing import Any

from service.tasks.schema import Schema
from service.tasks.table import TASKS


@dataclass(frozen=True)
class TaskEndpoint:
    path: str
    request: type[Schema]
    response: type[Schema]
    example: dict[str, Any]

    @property
    def sent(self) -> dict[str, Any]:
        return self.request.example

    @property
    def results(self) -> list[dict[str, Any]]:
        return list(self.example["results"])

    @property
    def tokens(self) -> int:
        return int(self.example["usage"]["tokens"])

    @property
    def model(self) -> str:
        return str(self.example["model"])


TASK_ENDPOINTS = [TaskEndpoint(task.path, task.request, task.response, task.example) for task in TASKS]
