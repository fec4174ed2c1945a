"""Command that starts bert-serve here."""

import sys
from collections.abc import Sequence
from pathlib import Path


def service_command(bundles: Sequence[Path], port: int, settings: Sequence[str] = ()) -> list[str]:
    """Return the command that serves these bundles on a port, with more settings."""
    folders = ",".join(str(bundle.resolve()) for bundle in bundles)
    return [sys.executable, "-m", "service.cli", "--bundles", folders, "--port", str(port), *settings]
