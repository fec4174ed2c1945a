"""The demo bundles: every model of the repository's `models/`, built where it is not there yet."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from bert.bundle import read_bundle
from bert.checkpoint.weights import file_hashes
from bert.errors import BundleError, CheckpointError
from model_export.progress import say
from model_export.verify.parity import AUTO, Tolerance


def made_by() -> str:
    """Return the tool and its version, as manifests have it."""
    try:
        return f"bert-export {metadata.version('bert-train-serve')}"
    except metadata.PackageNotFoundError:  # run from a source tree
        return "bert-export"


def build_demo(
    models: Path, out: Path, precision: str, tolerance_of: Callable[[str], Tolerance]
) -> list[Path]:
    """Export each folder of `models` that has a `task.json` to a folder of `out`; returns the bundles' folders.

    A bundle made from the same files by the same version in the same precision (AUTO: in the one that it chose) is left
    as it is.
    """
    folders = sorted(file.parent for file in models.glob("*/task.json"))
    if not folders:
        raise CheckpointError(
            f"{models} holds no model (a folder with task.json); run it in the repository's root"
        )
    for folder in folders:
        target = out / folder.name
        if is_current(target, folder, precision):
            say(f"{target} is there")
            continue
        # Imported here: where all bundles are there, nothing has to be waited for.
        from model_export.export import export

        say(f"{target}:")
        export(
            folder,
            target,
            precision,
            tolerance_of=tolerance_of,
            made_by=made_by(),
            overwrite=True,
        )
    return [out / folder.name for folder in folders]


def is_current(bundle: Path, checkpoint: Path, precision: str) -> bool:
    """Tell whether a bundle is what an export of the checkpoint would give. Hashes the checkpoint's files only."""
    try:
        manifest = read_bundle(bundle, verify_hashes=False).manifest
    except BundleError:
        return False
    same_files = manifest.source.get("files") == file_hashes(checkpoint)
    asked = manifest.choice.get("asked") if precision == AUTO else manifest.precision
    return same_files and asked == precision and manifest.made_by == made_by()
