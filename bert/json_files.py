"""JSON files of a checkpoint, which others wrote: any damage is told with the file's name."""

import json
from pathlib import Path
from typing import Any

from bert.errors import CheckpointError
from bert.files import read_regular


def read_json(file: Path) -> Any:
    """Return a file's content. Raises FileNotFoundError where there is none, CheckpointError where it is damaged."""
    try:
        return json.loads(read_regular(file))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None


def read_object(file: Path) -> dict[str, Any]:
    """Return a file's content, {} where there is none. Raises CheckpointError for anything but an object."""
    try:
        content = read_json(file)
    except FileNotFoundError:
        return {}
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds {type(content).__name__}, not an object")
    return content
