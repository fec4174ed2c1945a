"""Progress of a download on stderr: a line with its size, tenths as they come, and the seconds."""

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHOWN_FROM_BYTES = 20_000_000
"""Size of a download from which its tenths are shown."""


@contextmanager
def downloading(what: str, total_bytes: int) -> Iterator[type[Any]]:
    """Print what is downloaded and how long it took; gives the class that huggingface_hub reports its progress to."""
    from tqdm import tqdm

    done_bytes = shown_tenths = 0

    class Progress(tqdm):  # type: ignore[misc]
        """Takes the place of a progress bar, and adds up the bytes of all files."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            nonlocal done_bytes, shown_tenths
            done_bytes += int(n or 0)
            tenths = 10 * done_bytes // max(1, total_bytes)
            if shown_tenths < tenths < 10 and total_bytes >= SHOWN_FROM_BYTES:
                shown_tenths = tenths
                _write(f"{10 * tenths} % ")
            return super().update(n)

        def update_transfer(self, n: float | None = 1) -> None:
            """No-op: received bytes are counted when they are written."""

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            """No-op: a rate is not shown."""

    _write(f"  downloading {what} ({total_bytes / 1e6:,.1f} MB) ... ")
    start = time.perf_counter()
    try:
        yield Progress
    except BaseException:
        _write("failed\n")
        raise
    _write(f"{time.perf_counter() - start:.1f} s\n")


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
