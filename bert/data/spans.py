"""Labelled stretches of a text, read in the forms of annotation tools and laid over words. Offsets are code points."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """The stretch [start, end) of a text and its label."""

    start: int
    end: int
    label: str

    def __str__(self) -> str:
        return f"{self.label} {self.start}-{self.end}"


class SpannedWords:
    """The words of a text and their BIO tags, on which spans are laid one by one."""

    def __init__(self, text: str, bounds: list[tuple[int, int]]) -> None:
        """`bounds` are start and end of each word, in order."""
        self._text, self._bounds = text, bounds
        self._owners: list[LabelledSpan | None] = [None] * len(bounds)
        self.tags = ["O"] * len(bounds)
        self.laid = 0
        """Number of spans."""
        self.trimmed = 0
        """Number of spans with blanks at their ends."""
        self.moved: list[str] = []
        """A description of each span that was moved to the edges of a word."""

    def lay(self, span: LabelledSpan, label: str) -> None:
        """Tag the words that a span touches. Raises ValueError outside of the text, without a word, or over another."""
        words = self.words_of(span)
        if other := next((self._owners[n] for n in words if self._owners[n] is not None), None):
            raise ValueError(
                f"the spans {other} and {span} overlap, and a word has one label "
                "(label_map: {TYPE: null} leaves out the spans of a type)"
            )
        for n in words:
            self._owners[n], self.tags[n] = span, f"{'B' if n == words[0] else 'I'}-{label}"

    def words_of(self, span: LabelledSpan) -> range:
        """Return the words that a span touches, and count it. Raises ValueError outside of the text or without a word."""
        text, bounds = self._text, self._bounds
        if not 0 <= span.start < span.end <= len(text):
            raise ValueError(f"the span {span} is not inside its text of {len(text)} code points")
        inside = text[span.start : span.end]
        start = span.start + len(inside) - len(inside.lstrip())
        end = span.end - (len(inside) - len(inside.rstrip()))
        first = bisect_right(bounds, start, key=lambda word: word[1])
        words = range(first, bisect_left(bounds, end, key=lambda word: word[0]))
        if not inside.strip() or not words:
            raise ValueError(f"the span {span} holds no word: {inside!r}")
        self.laid += 1
        self.trimmed += (start, end) != (span.start, span.end)
        edges = bounds[first][0], bounds[words[-1]][1]
        if edges != (start, end):
            self.moved.append(f"{text[start:end]!r} to {text[slice(*edges)]!r}")
        return words


def read_span(value: Any, text: str) -> LabelledSpan:
    """Read one span: [start, end, label], or an object with these. Raises ValueError with the reason.

    Where the object holds its own text, that must stand there; offsets in UTF-16 units (JavaScript) are then
    understood too.
    """
    if isinstance(value, list) and len(value) >= 3:
        value = {"start": value[0], "end": value[1], "label": value[2]}
    if not isinstance(value, dict):
        raise ValueError(f"the span {str(value)[:60]!r} is not [start, end, label]")
    start, end = value.get("start", value.get("start_offset")), value.get("end", value.get("end_offset"))
    if type(start) is not int or type(end) is not int:
        raise ValueError(f"the span {str(value)[:60]!r} has no whole numbers for start and end")
    label = value.get("label", value.get("labels"))
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    if not isinstance(label, str) or not label.strip():
        raise ValueError(f"the span {start}-{end} has no single label: {label!r}")
    own = value.get("text")
    if not isinstance(own, str):
        return LabelledSpan(start, end, label.strip())
    for bounds in ((start, end), _from_utf16(text, start, end)):
        if _squeezed(text[slice(*bounds)]) == _squeezed(own):
            return LabelledSpan(*bounds, label.strip())
    raise ValueError(
        f"the span {start}-{end} is {text[start:end]!r} in the text, and {own[:60]!r} in the annotation"
    )


def _from_utf16(text: str, start: int, end: int) -> tuple[int, int]:
    """Return offsets that count a character beyond U+FFFF twice as code points."""
    units = text.encode("utf-16-le")
    first, last = (len(units[: 2 * place].decode("utf-16-le", errors="ignore")) for place in (start, end))
    return first, last


def _squeezed(text: str) -> str:
    return " ".join(text.split())
