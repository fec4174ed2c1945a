"""Where the checkpoints of these tests are, and the bundles made of them, each made once."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bert.base_models import MINILM, MINILM_SHA256
from bert.tasks.spec import TaskSpec
from model_export.cli import ExportSettings

ROOT = Path(__file__).parents[2]
MODELS, BUNDLES = ROOT / "models", ROOT / "bundles"
SHARED = ROOT.parent / "shared" / "data"
DEMO = ("sentiment", "ner", "qa", "similarity")
ENDPOINTS = {"sentiment": "/classify", "ner": "/ner", "qa": "/qa", "similarity": "/similarity"}


def export(checkpoint: Path, out: Path, *arguments: str) -> Path:
    """Run `bert-export`; return the bundle's folder."""
    command = [sys.executable, "-m", "model_export.cli", "--checkpoint", str(checkpoint), "--out", str(out)]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, f"bert-export {checkpoint.name} {arguments}:\n{run.stdout}{run.stderr}"
    return out


def has_adapter(name: str) -> bool:
    """Tell whether a demo model is there; of similarity, which is the base itself, always."""
    return name == "similarity" or (MODELS / name / "adapter_model.safetensors").is_file()


def why_missing(name: str) -> str:
    """Say why a test of a demo model is skipped."""
    return f"models/{name} is not there yet: this test waits for its adapter (configs/demo-{name}.yaml)"


def shipped_texts() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts, and the questions with contexts, that come with `bert-export`."""
    content = json.loads((ROOT / "model_export/texts.json").read_text(encoding="utf-8"))
    return content["texts"], [(row["question"], row["context"]) for row in content["questions"]]


@dataclass
class Workshop:
    """Makes bundles on demand in its folder."""

    folder: Path
    checkpoints: dict[str, Path] = field(default_factory=dict)
    """Name → checkpoint, of those that are not demo models."""

    def bundle(self, name: str, *arguments: str) -> Path:
        """Return the bundle of a checkpoint; `arguments` are bert-export's, such as --precision int8."""
        out = self.folder / "-".join([name, *arguments]).replace("--", "") / name
        return out if out.is_dir() else export(self._checkpoint(name), out, "--name", name, *arguments)

    def demo_bundle(self, name: str) -> Path:
        """Return the bundle as `bert-export --demo` makes it: what `make serve` left, if it is of this code."""
        made, precision = BUNDLES / name, str(ExportSettings.model_fields["precision"].default)
        is_there = (made / "bundle.json").is_file() and _is_fresh()
        return made if is_there else self.bundle(name, "--precision", precision)

    def _checkpoint(self, name: str) -> Path:
        if name in self.checkpoints:
            return self.checkpoints[name]
        if name == "similarity" and not (MODELS / name / "task.json").is_file():
            folder = self.folder / "similarity-checkpoint"
            folder.mkdir(exist_ok=True)
            base = {"name": MINILM, "sha256": MINILM_SHA256}
            TaskSpec("similarity", max_tokens=256, base=base).write(folder)
            return folder
        return MODELS / name


def _is_fresh() -> bool:
    """Tell whether `bundles/` was made from the models and the code that are here, as make_bundles.sh does."""
    script = (ROOT / "scripts/make_bundles.sh").read_text(encoding="utf-8")
    command = next(line for line in script.splitlines() if line.startswith("wanted="))
    made_from = BUNDLES / ".made-from"
    ask = f'. scripts/common.sh; {command}; printf "%s" "$wanted"'
    run = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, cwd=ROOT, check=True)
    return made_from.is_file() and made_from.read_text(encoding="utf-8").strip() == run.stdout
