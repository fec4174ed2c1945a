"""A request as the pipeline gets it: its context (id, deadline, timing), its text fields, and their checks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bert.errors import MAX_FIELD_ERRORS, FieldError, InputError, InvalidRequestError, displayed
from service.access.grants import Grant
from service.scheduling.fair_queue import NO_LANE, SHADOW, Lane

Item = TypeVar("Item")
Rows = Callable[[], Iterable[Mapping[str, object]]]
"""Makes the rows of a sampled request."""


@dataclass(slots=True)
class RequestContext:
    """One request's identity, deadline and timing; filled in on its way through the service."""

    request_id: str
    endpoint: str
    received: float
    """Arrival of the request's whole head, on `time.monotonic`."""
    timeout_ms: float = 0.0
    model: str = ""
    """Name of the model in use; empty until it is known to exist."""
    version: str = ""
    """Version of that model."""
    began: float = 0.0
    """Arrival of the request's first byte; `received` if the server does not tell."""
    body_bytes: int = 0
    """Size of the body, decompressed; 0 until it is read, or where there is none."""
    tokens: int = 0
    lengths: Sequence[int] = ()
    """Tokens of each text, or set of texts, in all its windows."""
    truncated: int = 0
    """Texts that were cut."""
    outcomes: Sequence[tuple[str, float]] = ()
    """Label and score of each result, for the metrics."""
    sample: "Callable[[str, Mapping[str, object], Rows], None] | None" = None
    """Keeps the request's texts and results, if it is one of the sampled (`service.sampling`)."""
    response_bytes: int = 0
    """Size that the response may have, about, once it is known."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: tokenize, queue, inference, decode."""
    starts: dict[str, float] = field(default_factory=dict)
    """Start of each phase, of the first where there are several, on `time.perf_counter`."""
    trace_id: str = ""
    """Id of the trace that has the request's spans; empty if it has none."""
    warnings: list[FieldError] = field(default_factory=list)
    """Remarks on single texts, which the response repeats."""
    is_shadow: bool = False
    """It was answered already, and is read again by another version."""
    grant: Grant | None = None
    """What the request's key may do; None where no key is needed."""

    @property
    def key(self) -> str:
        """Return the name of the request's API key, "" without one."""
        return self.grant.name if self.grant is not None else ""

    @property
    def lane(self) -> Lane:
        """Return the lane of the request's key."""
        if self.is_shadow:
            return SHADOW
        return NO_LANE if self.grant is None else Lane(self.grant.name, self.grant.rules.share)

    @property
    def deadline(self) -> float:
        """Return the request's deadline on `time.monotonic`."""
        return self.received + self.timeout_ms / 1000

    def timed(self, phase: str) -> "PhaseTimer":
        """Return a context manager that adds its duration to a phase."""
        return PhaseTimer(self, phase)

    def note_engine(self, queue_s: float, inference_s: float) -> None:
        """Note the times of the queue and of the engine, whose outputs have just arrived."""
        self.seconds["queue"], self.seconds["inference"] = queue_s, inference_s
        start = self.starts["inference"] = time.perf_counter() - inference_s
        self.starts["queue"] = start - queue_s


class PhaseTimer:
    """A block whose duration is added to a phase; a class because a generator takes three times as long."""

    __slots__ = ("_context", "_phase", "_start")

    def __init__(self, context: RequestContext, phase: str) -> None:
        """The time of the phase is added to the context's."""
        self._context, self._phase = context, phase

    def __enter__(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        spent, seconds = time.perf_counter() - self._start, self._context.seconds
        seconds[self._phase] = seconds.get(self._phase, 0.0) + spent
        self._context.starts.setdefault(self._phase, self._start)


@dataclass(frozen=True, slots=True)
class Texts:
    """A field's texts, and whether the client sent a list."""

    name: str
    values: list[str]
    is_list: bool

    @classmethod
    def of(cls, name: str, sent: str | list[str]) -> "Texts":
        """Wrap what the client sent."""
        return cls(name, [sent], False) if isinstance(sent, str) else cls(name, sent, True)

    def where(self, index: int) -> str:
        """Return the name of one text, for messages."""
        return f"{self.name}[{index}]" if self.is_list else self.name

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.values)

    def index(self, result: int) -> int:
        """Return the index of a result's text: a single string belongs to every result."""
        return result if self.is_list else 0


@dataclass(frozen=True, slots=True)
class TextLists:
    """Lists of texts that are read beside others: one list that belongs to every text, or a list for each."""

    name: str
    lists: list[list[str]]
    is_nested: bool
    keys: list[str] | None = None
    """Names of the texts, where the client sent an object."""

    @classmethod
    def of(cls, name: str, sent: list[str] | list[list[str]] | dict[str, str]) -> "TextLists":
        """Wrap what the client sent."""
        if isinstance(sent, dict):
            return cls(name, [list(sent.values())], False, list(sent))
        lists = [each for each in sent if isinstance(each, list)]
        return cls(name, lists or [[each for each in sent if isinstance(each, str)]], bool(lists))

    def where(self, item: int, number: int | None = None) -> str:
        """Return the name of one text, or of the list that belongs to an item, for messages."""
        name = f"{self.name}[{item}]" if self.is_nested else self.name
        if number is None:
            return name
        return f"{name}[{number}]" if self.keys is None else f"{name}.{displayed(self.keys[number])}"

    def index(self, item: int) -> int:
        """Return the index of an item's list."""
        return item if self.is_nested else 0

    def places(self) -> list[tuple[int, int]]:
        """Return list and place in it of each text."""
        return [(item, number) for item, each in enumerate(self.lists) for number in range(len(each))]

    def of_item(self, item: int) -> list[str]:
        """Return the texts that belong to an item."""
        return self.lists[self.index(item)]


def pair_count(first: Texts, second: Texts) -> int:
    """Return the number of pairs that two fields make.

    A single string pairs with each text of the other field; lists must have one length.
    """
    if first.is_list and second.is_list and len(first) != len(second):
        message = (
            f"has {len(second)} texts and {first.name} has {len(first)}; send lists of one "
            "length, or one string"
        )
        raise InvalidRequestError([FieldError(second.name, message)])
    return max(len(first), len(second))


def check_count(limit: int, *fields: Texts) -> None:
    """Refuse empty lists, and more than `limit` texts in all fields together."""
    empty = [FieldError(texts.name, "has no text; send at least one") for texts in fields if not len(texts)]
    if empty:
        raise InvalidRequestError(empty)
    total = sum(len(texts) for texts in fields)
    if total > limit:
        names = " and ".join(dict.fromkeys(texts.name for texts in fields))
        raise InvalidRequestError([too_many_texts(names, total, limit)])


def too_many_texts(name: str, count: int, limit: int) -> FieldError:
    """Return the error for a field of more texts than a request may have."""
    message = (
        f"{count} texts; a request may have {limit} (max_texts_per_request): send them in several requests"
    )
    return FieldError(name, message)


def check_not_blank(*fields: Texts) -> None:
    """Refuse empty texts, and texts of white space only."""
    blank = [
        FieldError(texts.where(i), "is empty")
        for texts in fields
        for i, text in enumerate(texts.values)
        if not text.strip()
    ]
    if blank:
        raise InvalidRequestError(blank)


def make_each(count: int, make: Callable[[int], Item], name: Callable[[int], str]) -> list[Item]:
    """Return `make(index)` for each index; gather the InputErrors of all into one InvalidRequestError."""
    items, errors = list[Item](), list[FieldError]()
    for index in range(count):
        try:
            items.append(make(index))
        except InputError as error:
            errors.append(FieldError(name(index), str(error)))
            if len(errors) == MAX_FIELD_ERRORS:
                break
    if errors:
        raise InvalidRequestError(errors)
    return items
