"""Sizes of responses in bytes of JSON, from the lengths of their parts: known before anything is written."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import orjson

from bert.errors import FieldError, InvalidRequestError
from service.pipeline.inputs import Choices, RequestContext

RESULT_BYTES = 80
"""Bytes of a result's names and numbers, about."""
SCORE_BYTES = 40
"""The same of a label with its score, whose name comes on top."""
NUMBER_BYTES = 12
"""Bytes of one number of a vector, about."""
CHARACTER_BYTES = 6
"""Most bytes of a character: those of an escape, such as \\u0001."""


def note_size(request: RequestContext, max_bytes: int, field: str, size: int) -> None:
    """Note the size of a request's response; raises InvalidRequestError, which names `field`, if it is over `max_bytes`."""
    request.response_bytes = size
    if size > max_bytes:
        message = (
            f"the response would take up to {size} bytes, and one may take {max_bytes} "
            "(max_response_bytes): ask for fewer results, or send the texts in several requests"
        )
        raise InvalidRequestError([FieldError(field, message)])


def text_size(text: str) -> int:
    """Return the bytes of a text."""
    return len(orjson.dumps(text))


def scores_size(labels: Sequence[str], count: int) -> int:
    """Return the most bytes of a text's best label and of `count` labels with their scores."""
    longest = sorted(map(text_size, labels), reverse=True)
    return RESULT_BYTES + longest[0] + sum(longest[:count]) + SCORE_BYTES * min(count, len(longest))


def vectors_size(vectors: int, numbers: int) -> int:
    """Return about the bytes of so many vectors, each of so many numbers."""
    return vectors * (RESULT_BYTES + numbers * NUMBER_BYTES)


def choices_size(choices: Choices, prompts: int, top_k: int | None) -> int:
    """Return the most bytes of the `top_k` best choices, or of all, of so many prompts; the best of each is there twice."""
    sizes = [
        sorted((text_size(choice) + RESULT_BYTES for choice in each), reverse=True) for each in choices.lists
    ]
    once = sum(sum(each[:top_k]) + each[0] for each in sizes)
    return once if choices.is_nested else prompts * once


class HasBounds(Protocol):
    """A stretch of a text, [start:end] in code points: an answer, an entity, a piece."""

    @property
    def start(self) -> int:
        """Return where it starts."""
        ...

    @property
    def end(self) -> int:
        """Return where it ends."""
        ...


def spans_size(spans: Iterable[HasBounds]) -> int:
    """Return the most bytes of answers or entities, from their lengths alone: their texts may be large together."""
    return sum(RESULT_BYTES + CHARACTER_BYTES * (span.end - span.start) for span in spans)
