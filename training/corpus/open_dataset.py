"""Opening of a data set of the hub, or of a local folder of one, through the library `datasets`.

`datasets` is imported only when a data set is opened. Code that comes with a data set never runs.
"""

from pathlib import Path
from typing import Any

from bert.errors import DataError

SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that mark a folder of `save_to_disk`."""


def is_saved(folder: str | Path) -> bool:
    """Return True for a folder that `save_to_disk` wrote."""
    return any((Path(folder) / name).is_file() for name in SAVED)


def open_dataset(
    path: str, split: str, config: str | None, revision: str | None, *, source: str, streaming: bool = False
) -> Any:
    """Return a split. Raises DataError, which names `source`, for one that cannot be loaded."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(source, None, "needs the library: pip install datasets") from error
    try:
        if is_saved(path):
            saved = datasets.load_from_disk(path)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        return datasets.load_dataset(path, config, split=split, revision=revision, streaming=streaming)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise DataError(source, None, f"cannot be loaded: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return an error's message with that of its first cause; the library's own often says little."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return str(error) if first is error else f"{error}: {first}"
