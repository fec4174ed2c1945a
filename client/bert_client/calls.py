"""Bodies of each call: a long list is split into requests, and their results are joined. No HTTP here.

A call holds groups of lists. The lists of one group (`text` and `text_pair`) have an item for each row and are split
together; a call with two groups (texts and candidates) is split along both.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bert_client.errors import (
    BertError,
    FieldError,
    InvalidResponseError,
    ProblemError,
    TooLargeError,
    renumbered,
)
from bert_client.results import (
    CallInfo,
    JsonObject,
    Match,
)

R = TypeVar("R")
Vector = npt.NDArray[Any]
"""Array of float32, or of the type that `embedding_type` names."""
E = TypeVar("E")
Texts = list[str] | tuple[str, ...]
ChoiceLists = list[list[str]] | tuple[list[str], ...]
OnError = Callable[[int, ProblemError], E]
"""Function of the place and the error of an item that the service refused; its result is yielded instead."""
Part = tuple[range, ...]
"""Rows of each group that one request holds."""


@dataclass(frozen=True)
class Reply:
    """A response with status 200."""

    json: Any
    request_id: str


@dataclass(frozen=True)
class Call(Generic[R]):
    """Lists that are sent in as many requests as it takes, and the results of their rows."""

    path: str
    read: Callable[[JsonObject], R]
    """Function from a row's JSON to its result."""
    groups: tuple[Mapping[str, Sequence[Any]], ...]
    constants: Mapping[str, object]
    """Fields that go into every request."""
    row_texts: int = 1
    """Texts that a row of the first group counts for at the service."""
    common_texts: int = 0
    """Texts among the constants, which count once for each request."""
    timeout: float | None = None
    """Seconds for each request with its retries; None is the client's."""
    one: bool = False
    """True if the caller gave strings and no list, and wants one result."""
    info: CallInfo = field(default_factory=CallInfo)
    places: Sequence[int] | None = None
    """Place of each row in the caller's list, where this is a part of it."""

    @property
    def sizes(self) -> list[int]:
        """Rows of each group; one for a group without lists, whose fields are constants."""
        return [len(next(iter(group.values()))) if group else 1 for group in self.groups]

    @property
    def rows(self) -> int:
        """Number of results."""
        return self.sizes[0]

    def parts(self, size: int) -> Iterator[Part]:
        """Yield the rows of each request, of at most `size` texts in all."""
        room = max(1, (size - self.common_texts) // sum(map(bool, self.groups))) if any(self.groups) else 1
        steps = [max(1, room // self.row_texts), *([room] * (len(self.groups) - 1))]
        yield from itertools.product(
            *(
                [range(start, min(start + step, rows)) for start in range(0, rows, step)]
                for rows, step in zip(self.sizes, steps, strict=True)
            )
        )

    def body(self, part: Part) -> dict[str, object]:
        """Return the body of a request."""
        lists = {
            name: items[rows.start : rows.stop]
            for group, rows in zip(self.groups, part, strict=True)
            for name, items in group.items()
        }
        return {**self.constants, **lists}

    def add(self, part: Part, reply: Reply, results: list[Any]) -> None:
        """Put the results of a part into their places; raises InvalidResponseError for what cannot be read."""
        try:
            self._add(part, reply.json["results"], results)
            self.info.model = reply.json["model"]
            self.info.tokens += reply.json["usage"]["tokens"]
            self.info.request_ids.append(reply.request_id)
            self._warn(part, reply.json.get("warnings", ()))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidResponseError(f"no answer of {self.path}: {type(error).__name__} {error}") from error

    def _add(self, part: Part, objects: Sequence[JsonObject], results: list[Any]) -> None:
        rows = part[0]
        if len(objects) != len(rows):
            raise ValueError(f"{len(objects)} results for {len(rows)} texts")
        for row, content in zip(rows, objects, strict=True):
            results[row] = self.read(content)
            if content.get("truncated"):
                self.info.truncated.append(self.place(row))

    def _warn(self, part: Part, objects: Sequence[JsonObject]) -> None:
        """Note the warnings of a part; a text that goes with several parts is warned of once."""
        for content in objects:
            field = renumbered(content["field"], self._starts(part), self._place_of)
            warning = FieldError(field, content["message"])
            if warning not in self.info.warnings:
                self.info.warnings.append(warning)

    def _starts(self, part: Part) -> dict[str, int]:
        return {name: rows.start for group, rows in zip(self.groups, part, strict=True) for name in group}

    def _place_of(self, name: str, row: int) -> int:
        """Return the place in the caller's list of a row of a field."""
        return self.place(row) if name in self.groups[0] else row

    def done(self, results: list[Any]) -> list[Any]:
        """Return the complete results, None in the place of each other."""
        return results

    def output(self, results: list[Any]) -> Any:
        """Return what the caller gets when all results are there."""
        return results[0] if self.one else results

    def place(self, row: int) -> int:
        """Return the place of a row in the caller's list."""
        return row if self.places is None else self.places[row]

    def explain(self, error: BertError, part: Part) -> None:
        """Say in an error which of the caller's items its request held."""
        if not self.one:
            error.items = range(self.place(part[0].start), self.place(part[0].stop - 1) + 1)
        elif len(part) > 1:
            error.items = part[1]
        if isinstance(error, ProblemError):
            error.move(self._starts(part), self._place_of)

    def select(self, rows: Sequence[int]) -> "Call[R]":
        """Return the call of some rows of the first group."""
        first = {name: [items[row] for row in rows] for name, items in self.groups[0].items()}
        places = [self.place(row) for row in rows]
        return dataclasses.replace(self, groups=(first, *self.groups[1:]), places=places)

    def refused(self, error: ProblemError) -> dict[int, ProblemError]:
        """Return row → its own error, of an error that concerns single rows; raises it again if it does not."""
        rows = {self.place(row): row for row in range(self.rows)}
        if isinstance(error, TooLargeError) and error.items is not None and len(error.items) == 1:
            return {rows[error.items.start]: error}
        found = dict[int, list[FieldError]]()
        for each in error.errors:
            named = re.fullmatch(r"(\w+)\[(\d+)\].*", each.field)
            if named is None or named[1] not in self.groups[0]:
                raise error
            found.setdefault(rows[int(named[2])], []).append(each)
        if not found:
            raise error
        return {row: error.of_fields(errors) for row, errors in found.items()}


def halves(part: Part) -> tuple[Part, Part] | None:
    """Split the longest group of a part in two; None where every group has one row."""
    widest = max(range(len(part)), key=lambda i: len(part[i]))
    rows = part[widest]
    if len(rows) < 2:
        return None
    middle = rows.start + len(rows) // 2
    first, second = range(rows.start, middle), range(middle, rows.stop)
    return (*part[:widest], first, *part[widest + 1 :]), (*part[:widest], second, *part[widest + 1 :])


@dataclass(slots=True)
class Ranked:
    """The matches of a text among the candidates that were sent so far."""

    candidates: int = 0
    matches: list[Match] = field(default_factory=list)


@dataclass(frozen=True)
class Ranking(Call[list[Match]]):
    """Candidates, the second group, ranked for each row of the first; the parts of a row's candidates are merged."""

    top_k: int | None = None

    def _add(self, part: Part, objects: Sequence[JsonObject], results: list[Any]) -> None:
        matches: dict[int, list[Match]] = {row: [] for row in part[0]}
        for content in objects:
            index = part[1].start + content["index"]
            text = self.groups[1]["candidates"][index]
            match = Match(index, content["score"], content["truncated"], text)
            matches[part[0].start + content.get("text_index", 0)].append(match)
        for row, found in matches.items():
            before = results[row] or Ranked()
            results[row] = Ranked(before.candidates + len(part[1]), before.matches + found)

    def done(self, results: list[Any]) -> list[Any]:
        """Return the matches, best first, of each text that was compared with all candidates."""
        ranked = [each or Ranked() for each in results]
        return [self._best(each) if each.candidates == self.sizes[1] else None for each in ranked]

    def output(self, results: list[Any]) -> Any:
        """Return the matches of each text, best first."""
        best = self.done(results)
        cut = {match.index for matches in best for match in matches if match.truncated}
        self.info.truncated.extend(sorted(cut))
        return super().output(best)

    def _best(self, ranked: Ranked) -> list[Match]:
        return sorted(ranked.matches, key=lambda match: (-match.score, match.index))[: self.top_k]


@dataclass(frozen=True)
class Vectors(Call[Vector]):
    """Vectors, which a list gets as one array."""

    def output(self, results: list[Any]) -> Any:
        """Return an array (D,), or (N, D) for a list; no text at all gives (0, 0)."""
        return results[0] if self.one else np.stack(results) if results else np.zeros((0, 0), np.float32)
