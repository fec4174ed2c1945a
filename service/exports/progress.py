"""Progress of an export in the background, in a file beside the place of its bundle."""

import json
from pathlib import Path
from typing import Any

from bert.bundle import MANIFEST


def progress_file(bundle: Path) -> Path:
    """Return the file that is there while a bundle is exported in the background, or after that failed.

    It holds an object: `step`, `done` (0 to 1) and `seconds_left`, as bert-export writes them, or `error`; or nothing yet.
    """
    return bundle.with_name(f"{bundle.name}.progress.json")


def read_progress(bundle: Path) -> dict[str, Any] | None:
    """Return the content of a bundle's progress file; None where nothing is being done, or the bundle is finished."""
    try:
        content = progress_file(bundle).read_bytes()
        found = json.loads(content)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and not (bundle / MANIFEST).is_file() else None
