"""A request as the pipeline gets it: its context (id, deadline, timing), its text fields, and their checks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bert.errors import MAX_FIELD_ERRORS, FieldError, InputError, InvalidRequestError, displayed
from bert.tasks.spec import LEFT_OUT
from bert.tasks.tags import TagScheme
from service.engine.loaded_model import Model

Item = TypeVar("Item")


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
    began: float = 0.0
    """Arrival of the request's first byte; `received` if the server does not tell."""
    tokens: int = 0
    response_bytes: int = 0
    """Size that the response may have, about, once it is known."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: tokenize, queue, inference, decode."""
    warnings: list[FieldError] = field(default_factory=list)
    """Remarks on single texts, which the response repeats."""

    @property
    def deadline(self) -> float:
        """Return the request's deadline on `time.monotonic`."""
        return self.received + self.timeout_ms / 1000

    def timed(self, phase: str) -> "PhaseTimer":
        """Return a context manager that adds its duration to a phase."""
        return PhaseTimer(self.seconds, phase)


class PhaseTimer:
    """A block whose duration is added to a phase; a class because a generator takes three times as long."""

    __slots__ = ("_phase", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        """`seconds` are those of all phases."""
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        spent = time.perf_counter() - self._start
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent


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
class Choices:
    """Choices for prompts: one list that belongs to every prompt, or a list for each."""

    lists: list[list[str]]
    is_nested: bool

    @classmethod
    def of(cls, sent: list[str] | list[list[str]]) -> "Choices":
        """Wrap what the client sent."""
        lists = [each for each in sent if isinstance(each, list)]
        return cls(lists, True) if lists else cls([[each for each in sent if isinstance(each, str)]], False)

    def where(self, item: int, choice: int | None = None) -> str:
        """Return the name of one choice, or of the list of a prompt, for messages."""
        name = f"choices[{item}]" if self.is_nested else "choices"
        return name if choice is None else f"{name}[{choice}]"

    def for_prompt(self, prompt: int) -> int:
        """Return the index of a prompt's list."""
        return prompt if self.is_nested else 0


def prompted(texts: Texts, model: Model, name: str | None, field: str = "prompt_name") -> Texts:
    """Return the texts with the model's prompt of that name before each; None takes the model's default, "" none.

    Raises InvalidRequestError for a name that the model does not have.
    """
    prompts = model.spec.prompts
    name = model.spec.default_prompt_name if name is None else name
    if not name:
        return texts
    if name not in prompts:
        known = f"its prompts are {', '.join(prompts)}" if prompts else "it has none"
        raise InvalidRequestError(
            [FieldError(field, f"model {model.name!r} has no prompt {name!r}; {known}")]
        )
    return replace(texts, values=[prompts[name] + value for value in texts.values])


def check_allows_no_answer(model: Model, threshold: float) -> None:
    """Refuse a threshold for no answer where the model always gives one."""
    if not model.spec.allows_no_answer:
        message = (
            f"is {threshold:g}, but model {model.name!r} was not trained on questions without an answer and always gives "
            "one: leave it out"
        )
        raise InvalidRequestError([FieldError("no_answer_threshold", message)])


def check_dimensions(model: Model, dimensions: int | None) -> None:
    """Refuse more numbers of a vector than the model gives, and less than one."""
    size = model.embedding_size or 0
    if dimensions is not None and not 1 <= dimensions <= size:
        message = (
            f"is {displayed(str(dimensions))}, and model {model.name!r} gives {size}: ask for 1 to {size}"
        )
        raise InvalidRequestError([FieldError("dimensions", message)])


def check_entity_types(model: Model, labels: Sequence[str]) -> frozenset[str]:
    """Return the types of entities that a request asks for; refuse none at all, and those that the model lacks."""
    types = TagScheme.of(model.spec.labels).types
    return _known(
        "labels", labels, types, lambda label: f"model {model.name!r} has no entities of type {label}"
    )


def check_left_out(kinds: Sequence[str]) -> frozenset[str]:
    """Return the kinds of words that a request leaves out of entities; refuse none at all, and unknown ones."""
    return _known("left_out", kinds, LEFT_OUT, lambda kind: f"{kind} is no kind of word to leave out")


def _known(
    field: str, names: Sequence[str], known: Sequence[str], refusal: Callable[[str], str]
) -> frozenset[str]:
    listed = ", ".join(known)
    errors = [
        FieldError(f"{field}[{i}]", f"{refusal(repr(displayed(name)))}; known are {listed}")
        for i, name in enumerate(names)
        if name not in known
    ]
    if not names:
        errors = [FieldError(field, f"is empty; name one of {listed}, or leave it out")]
    if errors:
        raise InvalidRequestError(errors)
    return frozenset(names)


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


def check_choices(limit: int, prompt: Texts, choices: Choices) -> int:
    """Return the number of prompts with their choices; one prompt goes with each of several lists.

    Raises InvalidRequestError for lists of unequal length, fewer than two choices for a prompt, empty texts, and more
    than `limit` texts, where the choices of each prompt count.
    """
    if not len(prompt):
        raise InvalidRequestError([FieldError("prompt", "has no text; send at least one")])
    count = max(len(prompt), len(choices.lists))
    if len(prompt) != len(choices.lists) and choices.is_nested and prompt.is_list:
        message = (
            f"has {len(choices.lists)} lists and prompt has {len(prompt)} texts; send a list for each prompt, or one list "
            "of strings for all"
        )
        raise InvalidRequestError([FieldError("choices", message)])
    total = len(prompt) + sum(len(choices.lists[choices.for_prompt(item)]) for item in range(count))
    if total > limit:
        raise InvalidRequestError([too_many_texts("prompt and choices", total, limit)])
    errors = [
        FieldError(choices.where(item), f"has {len(each)} choices; send at least two")
        for item, each in enumerate(choices.lists)
        if len(each) < 2
    ]
    errors += [
        FieldError(choices.where(item, number), "is empty")
        for item, each in enumerate(choices.lists)
        for number, choice in enumerate(each)
        if not choice.strip()
    ]
    if errors:
        raise InvalidRequestError(errors[:MAX_FIELD_ERRORS])
    check_not_blank(prompt)
    return count


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
