"""The text fields of a request: one string or a list, their checks, and how two fields combine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bert.errors import MAX_FIELD_ERRORS, FieldError, InputError, InvalidRequestError

MAX_RESPONSE_CHARACTERS = 2**24
"""Maximum characters of the sequences in one response."""

Item = TypeVar("Item")


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
        raise InvalidRequestError(
            [too_many_texts(" and ".join(texts.name for texts in fields), total, limit)]
        )


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


def check_response_size(texts: Texts, masks: Sequence[int], top_k: int) -> int:
    """Return the characters of a response; refuse a request for more than fit in memory.

    The response has `top_k` copies of a text for each of its `masks`.
    """
    characters = top_k * sum(len(text) * count for text, count in zip(texts.values, masks, strict=True))
    if characters > MAX_RESPONSE_CHARACTERS:
        message = (
            f"{top_k} sequences for each of {sum(masks)} masks are {characters} characters, and an answer may have "
            f"{MAX_RESPONSE_CHARACTERS}: ask for fewer, or send the texts in several requests"
        )
        raise InvalidRequestError([FieldError("top_k", message)])
    return characters


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
