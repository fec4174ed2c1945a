"""The files to read, listed from the sources in the settings, always in the same order."""

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bert.data.files import COMPRESSED, ending
from bert.errors import DataError
from training.corpus.object_store import stored_files
from training.corpus.open_dataset import is_saved
from training.corpus.settings import TextSource

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
}


@dataclass(frozen=True)
class TextFile:
    """One file, or one data set of the hub."""

    path: str
    format: str
    """One of jsonl, parquet, text, hub."""
    source: TextSource
    """Source that names it, with the place of its texts."""
    size: int = 0
    """Bytes on disk or in the store; 0 if unknown."""


def list_files(sources: Iterable[str | TextSource], besides: Path | None = None) -> tuple[TextFile, ...]:
    """Return all files, those of a folder or pattern sorted, except those in the folder `besides`.

    Raises DataError for a missing source.
    """
    found: list[TextFile] = []
    for source in sources:
        found += _files(TextSource(path=source) if isinstance(source, str) else source)
    written = besides.resolve() if besides else None
    return tuple(
        file
        for file in found
        if written is None
        or file.format == "hub"
        or "://" in file.path
        or written not in Path(file.path).resolve().parents
    )


def _files(source: TextSource) -> Iterator[TextFile]:
    if "://" in source.path:
        for url, size in stored_files(source.path, FORMATS):
            yield TextFile(url, _format(url) if source.format == "auto" else source.format, source, size)
        return
    path = Path(source.path)
    if source.hub_revision is not None and path.exists():
        raise DataError(path, None, f"is here on disk, which has no revision {source.hub_revision!r}")
    if source.format == "hub" or is_saved(path):
        yield TextFile(source.path, "hub", source)
        return
    paths = _paths(path)
    if not paths:
        if path.is_dir():
            raise DataError(path, None, f"holds no file that ends in {', '.join(FORMATS)}")
        raise DataError(path, None, "does not exist; a data set of the hub needs format: hub")
    for each in paths:
        kind = _format(str(each)) if source.format == "auto" else source.format
        yield TextFile(str(each), kind, source, each.stat().st_size)


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(each for each in path.rglob("*") if each.is_file() and ending(each) in FORMATS)
    return [path] if path.is_file() else sorted(Path(each) for each in glob.glob(str(path), recursive=True))


def _format(path: str) -> str:
    if ending(path) not in FORMATS:
        known = f"{', '.join(FORMATS)}, and these under {', '.join(COMPRESSED)}"
        raise DataError(path, None, f"has no ending that says its format; known are {known}, or give format:")
    return FORMATS[ending(path)]
