"""Where the checkpoints of these tests are, and the bundles made of them, each made once."""

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from model_export.cli import ExportSettings, main

ROOT = Path(__file__).parents[2]
MODELS, BUNDLES = ROOT / "models", ROOT / "bundles"
SHARED = ROOT.parent / "shared" / "data"
DEMO = ("sentiment", "ner", "qa", "similarity")
ENDPOINTS = {"sentiment": "/classify", "ner": "/ner", "qa": "/qa", "similarity": "/similarity"}


def export(checkpoint: Path, out: Path, *arguments: str) -> Path:
    """Export in this process, as `bert-export` does; return the bundle's folder."""
    assert main(["--checkpoint", str(checkpoint), "--out", str(out), *arguments]) == 0
    return out


def has_adapter(name: str) -> bool:
    """Tell whether a demo model is there."""
    return (MODELS / name / "adapter_model.safetensors").is_file()


def why_missing(name: str) -> str:
    """Say why a test of a demo model is skipped."""
    return f"models/{name} is not there yet: this test waits for its adapter (models/README.md)"


def shipped_texts() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts, and the questions with contexts, that come with `bert-export`."""
    content = json.loads((ROOT / "model_export/verify/texts.json").read_text(encoding="utf-8"))
    return content["texts"], [(row["question"], row["context"]) for row in content["questions"]]


@dataclass
class Workshop:
    """Makes bundles on demand in its folder, which several workers may share."""

    folder: Path
    checkpoints: dict[str, Path] = field(default_factory=dict)
    """Name → checkpoint, of those that are not demo models."""

    def bundle(self, name: str, *arguments: str) -> Path:
        """Return the bundle of a checkpoint; `arguments` are bert-export's, such as --precision int8.

        A demo model's bundle serves in place of one with the precision that it was given by itself.
        """
        if name in DEMO and arguments in (("--precision", "fp32"), ("--precision", "int8")):
            demo = self.demo_bundle(name)
            if json.loads((demo / "bundle.json").read_text(encoding="utf-8"))["precision"] == arguments[1]:
                return demo
        out = self.folder / "-".join([name, *arguments]).replace("--", "") / name
        with self.lock(name):
            return out if out.is_dir() else export(self._checkpoint(name), out, "--name", name, *arguments)

    def lock(self, name: str) -> FileLock:
        """Return the lock under which one worker makes something of this name, which the others find made."""
        return FileLock(self.folder / f"{name}.lock")

    def demo_bundle(self, name: str) -> Path:
        """Return the bundle as `bert-export --demo` makes it: what `make serve` left, if it is of this code."""
        made, precision = BUNDLES / name, str(ExportSettings.model_fields["precision"].default)
        is_there = (made / "bundle.json").is_file() and _is_fresh()
        return made if is_there else self.bundle(name, "--precision", precision)

    def _checkpoint(self, name: str) -> Path:
        if name in self.checkpoints:
            return self.checkpoints[name]
        return MODELS / name


def _is_fresh() -> bool:
    """Tell whether `bundles/` was made from the models and the code that are here, as make_bundles.sh does."""
    script = (ROOT / "scripts/make_bundles.sh").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line.startswith(("code=", "wanted="))]
    made_from = BUNDLES / ".made-from"
    ask = "\n".join([". scripts/common.sh", *commands, 'printf "%s" "$wanted"'])
    run = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, cwd=ROOT, check=True)
    return made_from.is_file() and made_from.read_text(encoding="utf-8").strip() == run.stdout.strip()
