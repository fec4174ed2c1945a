"""Gathers what is wrong with a data file, so that a user sees it all at once and not one line a run."""

from pathlib import Path

from bert.errors import DataError

MAX_SHOWN = 20


class Problems:
    """The problems of one file, in the order found; `raise_if_any` turns them into one DataError."""

    def __init__(self, path: str | Path) -> None:
        """Start with no problems for the file at `path`."""
        self.path = path
        self._found: list[tuple[int | None, str]] = []

    def __len__(self) -> int:
        """Count all problems, also those past the twenty that are kept word for word."""
        return len(self._found)

    def add(self, line: int | None, reason: str) -> None:
        """Note one problem; `line` counts from 1, None where the format has no useful lines."""
        self._found.append((line, reason))

    def raise_if_any(self) -> None:
        """Raise DataError with the first twenty problems, or returns when there are none."""
        if not self._found:
            return
        if len(self._found) == 1:
            line, reason = self._found[0]
            raise DataError(self.path, line, reason)
        shown = [_with_line(line, reason) for line, reason in self._found[:MAX_SHOWN]]
        left = len(self._found) - len(shown)
        if left:
            shown.append(f"and {left} more")
        reason = f"{len(self._found)} problems:\n  " + "\n  ".join(shown)
        raise DataError(self.path, self._found[0][0], reason)


def _with_line(line: int | None, reason: str) -> str:
    return reason if line is None else f"line {line}: {reason}"
