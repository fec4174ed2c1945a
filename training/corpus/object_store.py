"""Sources in an object store, named by URL (s3://bucket/key), listed and streamed through fsspec.

The library of a store, s3fs for s3://, is imported when such a source is read, and has its own settings: AWS_ENDPOINT_URL.
"""

import glob
import io
from collections.abc import Callable, Collection
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from bert.data.files import ending
from bert.errors import DataError


def stored_files(url: str, endings: Collection[str]) -> list[tuple[str, int]]:
    """Return URL and bytes of an object, or of all in a pattern, or with these endings in a folder. Raises DataError."""

    def listed(store: Any, name: str) -> list[tuple[str, int]]:
        store.invalidate_cache()
        found = store.glob(name, detail=True) if glob.has_magic(name) else store.find(name, detail=True)
        if not glob.has_magic(name) and name not in found:
            found = {each: found[each] for each in found if ending(each) in endings}
        files = sorted((each for each in found if found[each]["type"] == "file"), key=PurePosixPath)
        return [(store.unstrip_protocol(each), found[each]["size"]) for each in files]

    files: list[tuple[str, int]] = _asked(url, listed)
    if not files:
        raise DataError(url, None, f"does not exist, or holds no file that ends in {', '.join(endings)}")
    return files


def open_source(path: str) -> BinaryIO:
    """Open a file, or an object of a store by its URL. A read that breaks off is an OSError that names the byte."""
    if "://" not in path:
        return open(path, "rb")
    # 8 MiB are read ahead, and no more are kept.
    stored = _asked(path, lambda store, name: store.open(name, block_size=8 << 20, cache_type="readahead"))
    if not hasattr(stored, "cache"):  # file:// and the like, whose errors are those of files
        return cast(BinaryIO, stored)
    fetch, size = stored.cache.fetcher, stored.size

    def fetched(start: int, stop: int) -> bytes:
        try:
            data: bytes = fetch(start, stop)
            if len(data) < stop - start:
                raise OSError(f"{len(data):,} bytes came instead of {stop - start:,}")
        except Exception as error:  # each store has errors of its own
            raise OSError(f"reading broke off at byte {start:,} of {size:,}: {error}") from error
        return data

    stored.cache.fetcher = fetched
    return cast(BinaryIO, io.BufferedReader(stored, 1 << 20))


def _asked(url: str, question: Callable[[Any, str], Any]) -> Any:
    """Put a question to the store of a URL. Raises DataError."""
    try:
        import fsspec

        return question(*fsspec.core.url_to_fs(url))
    except ImportError as error:
        raise DataError(url, None, f"{error}: pip install 'bert-train-serve[store]'") from error
    except Exception as error:  # each store has errors of its own
        raise DataError(url, None, f"cannot be read from its store: {error}") from error
