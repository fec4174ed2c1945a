"""What a task is to the interfaces of the service: HTTP, JSON lines, the other APIs, bulk.

`service.tasks.table` lists the tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import orjson
from pydantic import create_model

from bert.tasks.spec import TaskSpec
from service.engine.engine_protocol import Floats
from service.engine.models import Model, Registry
from service.pipeline.pipeline import INLINE_RESULTS, Call
from service.tasks.schema import Example, Item, Schema, TaskResponse

Request = TypeVar("Request", bound=Schema)
PART = 16
"""List items that are serialised in one call, which holds the interpreter's lock."""
LONG_CHARACTERS = 2**15
"""Length from which a text is serialised in a call of its own, in characters."""


class ListItems(Protocol):
    """Makes the lists inside a result: `in_parts` for JSON, `_plain` of `service.bulk.tasks` for Python."""

    def __call__(self, items: Iterable[Item], size: int = PART) -> list[Item]:
        """Return the items as a list, or as what stands for one in JSON; `size` of them are serialised in one call."""
        ...


def to_json(value: object) -> bytes:
    """Serialise a value; float32 arrays as the shortest numbers that read back equal.

    A number that is not finite becomes null; the scheduler raises an error for those.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def in_parts(items: Iterable[Item], size: int = PART) -> list[Item]:
    """Return the items as a list, or, if there are `size` or more, as JSON that was serialised in parts.

    Items are what `to_json` takes: dicts, dataclasses with the fields of the result, numbers, vectors.
    """
    left = iter(items)
    part = list(islice(left, size))
    if len(part) < size:
        return part
    parts = list[bytes]()
    while part:
        parts.append(to_json(part)[1:-1])
        part = list(islice(left, size))
    return cast(list[Item], orjson.Fragment(b"[" + b",".join(parts) + b"]"))


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors (N, E) of texts, and which texts were cut."""

    vectors: Floats
    truncated: list[bool]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a request; their JSON is made while the response is written."""

    count: int
    """Number of labels, answers or scores in them, about, which says how long writing takes."""
    rows: Callable[[ListItems], Iterable[Mapping[str, Any]]]
    """Makes the results, in the order of the request."""
    max_inline: int = INLINE_RESULTS
    """Most of them that are written on the event loop."""
    is_lazy: bool = False
    """Outputs are decoded while the rows are made."""
    file: Embedded | None = None
    """Vectors that are sent as a NumPy file, in place of the rows."""


class ServedTask(ABC, Generic[Request]):
    """A task: its request, its results, and what the interfaces need. The class's docstring describes the endpoint."""

    path: str
    """Path of its endpoint."""
    model_task: str | None
    """Task of the models that do it; None where `find` decides."""
    request: type[Request]
    result: Any
    """TypedDict of one result."""
    order: str
    """Description of the response: its results and their order."""
    example: Example
    """A response, which is what the demo model answers to the example of the request."""
    texts: tuple[str, ...] = ("text",)
    """Fields of texts."""
    more: str = ""
    """Column of results that lists others than the best; bulk prediction has it on demand."""
    by_row: bool = True
    """Each text, or each set of texts of all fields, has one result."""
    has_file: bool = False
    """A response may be a NumPy file."""
    form: str = ""
    """Field of the request that chooses how its results are written."""
    probe: ClassVar[dict[str, Any]] = {}
    """A short value for each field for which the text "a" will not do."""

    def __init__(self) -> None:
        """Make the schema of the response."""
        name = f"{self.request.__name__.removesuffix('Request')}Response"
        self.name = self.path.strip("/").replace("-", "_")
        results: Any = list[self.result]  # type: ignore[name-defined]
        self.response: type[TaskResponse] = create_model(
            name, __base__=TaskResponse, __doc__=self.order, results=(results, ...)
        )

    @abstractmethod
    async def run(self, call: Call, request: Request) -> Results:
        """Answer a request with a model that `find` returned."""

    def find(self, registry: Registry, name: str | None) -> Model:
        """Return the model of a name, or the default one. Raises what `Registry.find` does."""
        return registry.find(name, self.model_task)

    def fields(self, spec: TaskSpec) -> tuple[str, ...]:
        """Return the fields of texts that a model reads; of a model that reads pairs or single texts, both."""
        return self.texts

    def fields_among(self, spec: TaskSpec, given: Collection[str]) -> tuple[str, ...]:
        """Return the fields that a model reads where these are given."""
        names = self.fields(spec)
        return names[:1] if spec.pair is None and names[-1] not in given else names

    @property
    def options(self) -> list[str]:
        """Return the fields of a request beside its texts, its model and the form of its results."""
        others = {*self.texts, "model", self.form}
        return [name for name in self.request.model_fields if name not in others]

    def example_of(self, spec: TaskSpec) -> Example:
        """Return an example of a request to a model."""
        return self.request.example

    def shows_more(self, spec: TaskSpec, options: Collection[str]) -> bool:
        """Tell whether bulk prediction has the column `more`, where these options are given."""
        return "top_k" in options


def response_example(model: str, tokens: int, *results: Example) -> Example:
    """Return a response as the OpenAPI document shows it."""
    return {"model": model, "results": list(results), "usage": {"tokens": tokens}}
