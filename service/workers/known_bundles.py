"""The record of the bundles that an engine process found, which the next one reads to open the same folders."""

import json
from contextlib import suppress
from pathlib import Path

from bert.files import atomic_write
from service.engine.bundle_folders import Known

BUNDLES = "bundles.json"
"""Name of the file in the runtime directory."""


def write_known(runtime_dir: Path, known: Known) -> None:
    """Keep the bundles for the next engine process."""
    content = json.dumps([(str(folder), *name_and_task) for folder, name_and_task in known.items()])
    with suppress(OSError):  # the next process then serves what it finds
        atomic_write(runtime_dir / BUNDLES, content)


def read_known(runtime_dir: Path) -> Known:
    """Return the bundles that an engine process found before; none if this is the first one."""
    try:
        content = json.loads((runtime_dir / BUNDLES).read_bytes())
    except OSError:
        return {}
    return {Path(folder): (name, task) for folder, name, task in content}
