"""Gathers what is wrong with a data file, so that a user sees it all at once and not one line a run."""

from pathlib import Path

from bert.errors import DataError

MAX_SHOWN = 20
Place = int | str
"""A line counted from 1, or what stands for one where a format has none: "row 3"."""


class Problems:
    """The problems of one file, in the order found; `raise_if_any` turns them into one DataError."""

    def __init__(self, path: str | Path) -> None:
        """Start with no problems for the file at `path`."""
        self.path = path
        self._found: list[tuple[Place | None, str]] = []
        self.advice = ""
        """Advice, shown once after the last problem."""

    def __len__(self) -> int:
        """Count all problems, also those past the twenty that are kept word for word."""
        return len(self._found)

    @property
    def first(self) -> tuple[Place | None, str] | None:
        """The place and the reason of the first problem."""
        return self._found[0] if self._found else None

    def add(self, place: Place | None, reason: str) -> None:
        """Note one problem; None where it has no place."""
        self._found.append((place, reason))

    def raise_if_any(self) -> None:
        """Raise DataError with the first twenty problems, or returns when there are none."""
        if not self._found:
            return
        first, reason = self._found[0]
        line = first if isinstance(first, int) else None
        if len(self._found) == 1:
            reason = reason if line else _with_place(first, reason)
            raise DataError(self.path, line, "; ".join(filter(None, (reason, self.advice))))
        shown = [_with_place(place, reason) for place, reason in self._found[:MAX_SHOWN]]
        left = len(self._found) - len(shown)
        if left:
            shown.append(f"and {left} more")
        if self.advice:
            shown.append(self.advice)
        reason = f"{len(self._found)} problems:\n  " + "\n  ".join(shown)
        raise DataError(self.path, line, reason)


def _with_place(place: Place | None, reason: str) -> str:
    if place is None:
        return reason
    return f"line {place}: {reason}" if isinstance(place, int) else f"{place}: {reason}"
