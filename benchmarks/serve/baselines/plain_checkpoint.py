"""A checkpoint as a plain folder in Hugging Face's format, adapters merged: the form that baselines load."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

from safetensors.numpy import save_file

from benchmarks.serve.load.running import ENVIRONMENT, ROOT
from bert.bodies.family import Family
from bert.checkpoint.weights import Checkpoint
from bert.tasks.spec import TaskSpec

CACHE = "cache"
"""Folder beside the model for the baselines' own files."""
MADE_FROM = "made-from.json"
CLASSES = {"classification": "BertForSequenceClassification", "qa": "BertForQuestionAnswering"}


def write_plain(checkpoint: Checkpoint, folder: Path) -> None:
    """Write weights, config and tokenizer; `reading.json` says what a pipeline of reading comprehension is given.

    A graph that was exported from other weights is removed. Raises KeyError for a task that no baseline serves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").unlink(missing_ok=True)
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    spec = checkpoint.spec
    family = checkpoint.config.family
    save_file(
        family.own_weights(checkpoint.weights, CLASSES[spec.task], asdict(checkpoint.config)),
        folder / "model.safetensors",
        {"format": "pt"},
    )
    _write(folder / "config.json", {**checkpoint.config.to_dict(), **_about(spec, family)})
    checkpoint.tokenizer.save(folder)
    file = folder / "tokenizer_config.json"
    stated = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    _write(file, {**stated, "model_max_length": spec.max_tokens})
    _write(folder / "reading.json", _reading(spec))
    _write(folder / MADE_FROM, checkpoint.sources)


def is_written(checkpoint: Checkpoint, folder: Path) -> bool:
    """Tell whether the folder was written from this checkpoint, by the hashes of its files."""
    file = folder / MADE_FROM
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == checkpoint.sources


def export_standard(folder: Path, python: str) -> None:
    """Write `model.onnx` as torch.onnx makes it, in the baselines' environment."""
    command = [python, "-m", "benchmarks.serve.baselines.export_onnx", str(folder.resolve())]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the standard export failed:\n{done.stderr[-3000:]}")


def _about(spec: TaskSpec, family: Family) -> dict[str, object]:
    about: dict[str, object] = {"architectures": [family.own_class(CLASSES[spec.task])]}
    if spec.labels:
        about |= {
            "id2label": {str(number): label for number, label in enumerate(spec.labels)},
            "label2id": {label: number for number, label in enumerate(spec.labels)},
            "problem_type": "single_label_classification",
        }
    return about


def _reading(spec: TaskSpec) -> dict[str, object]:
    """Return the limits in the words of the pipeline; it is to give its best span, whatever its score."""
    return {
        "max_seq_len": spec.max_tokens,
        "doc_stride": spec.stride,
        "max_question_len": spec.max_question_tokens,
        "max_answer_len": spec.max_answer_tokens,
        "handle_impossible_answer": False,
    }


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
