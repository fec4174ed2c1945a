"""Exports in float16 with their own verification: every task, and every body that the graphs know."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.checkpoints import shape, write_checkpoint
from bert.checkpoint.base_models import resolve_base
from bert.config import BertConfig
from bert.errors import CheckpointError, ParityError
from bert.tasks.spec import TaskSpec
from model_export.export import export
from model_export.verify.parity import Tolerance

WIDTH = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 3}
NARROW = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
TOKENS = 512
LONG_TOKENS = 1024
"""Longest text of a body that reads more than 512: in long texts its graph may take other operators."""
SPECS = {
    "classification": TaskSpec("classification", ("bad", "good", "neither"), max_tokens=TOKENS),
    "pairs": TaskSpec("classification", ("no", "yes"), pair=True, max_tokens=TOKENS),
    "ner": TaskSpec("ner", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_tokens=TOKENS, stride=64),
    "qa": TaskSpec("qa", max_tokens=384, stride=128, allows_no_answer=True),
    "similarity": TaskSpec("similarity", max_tokens=TOKENS),
    "multiple_choice": TaskSpec("multiple_choice", max_tokens=TOKENS),
    "fill_mask": TaskSpec("fill_mask", max_tokens=TOKENS),
}
_DEBERTA = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
_DEBERTA_V2 = {**_DEBERTA, "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
BODIES: dict[str, dict[str, Any]] = {
    "modernbert": {"model_type": "modernbert", "max_position_embeddings": 8192},
    "deberta-v3": {"model_type": "deberta-v2", **_DEBERTA_V2},
    "mpnet": {"model_type": "mpnet", "relative_attention_num_buckets": 32, "max_position_embeddings": TOKENS + 2},
    "deberta": {"model_type": "deberta", **_DEBERTA},
    "deberta-v2, convolution": {
        "model_type": "deberta-v2", **_DEBERTA_V2, "conv_kernel_size": 3, "conv_act": "gelu",
    },
    "roberta": {"model_type": "roberta", "type_vocab_size": 1, "max_position_embeddings": TOKENS + 2},
    "electra": {"model_type": "electra", "embedding_size": 128},
    "albert": {"model_type": "albert", "embedding_size": 128},
    "distilbert": {"model_type": "distilbert"},
}  # fmt: skip
"""Name → values of its config, beside the width."""
SMALL_CASES = ("bert, classification", "bert, ner", "modernbert, classification")
VOCABULARY = 400
"""Rows of the table of words. The tokenizer has fewer pieces, and scores of a whole vocabulary are slow in numpy."""


class Case(NamedTuple):
    """A model to export."""

    name: str
    config: BertConfig
    spec: TaskSpec
    precision: str


def run(check: Check) -> None:
    """Export one model after another."""
    if not check.has_engine:
        check.record.note("This onnxruntime has no CUDA: narrow models are verified in numpy.")
    for case in cases(check):
        with check.record.step(case.name):
            _export(check, case)
    _demos(check)


def cases(check: Check) -> Iterator[Case]:
    """Yield the models: float16 of every task and body, and float32 in the CPU's layout."""
    wide = not check.small and check.has_engine
    width: dict[str, Any] = {**(WIDTH if wide else NARROW), "vocab_size": VOCABULARY}
    bert = shape("bert", **width)
    all_cases = [Case(f"bert, {task}", bert, spec, "fp16") for task, spec in SPECS.items()]
    for name, values in BODIES.items():
        tokens = LONG_TOKENS if values.get("max_position_embeddings", 0) > LONG_TOKENS else TOKENS
        spec = TaskSpec("classification", ("bad", "good", "neither"), max_tokens=tokens)
        all_cases.append(Case(f"{name}, classification", shape(**{**width, **values}), spec, "fp16"))
    if check.small:
        all_cases = [case for case in all_cases if case.name in SMALL_CASES]
    yield from all_cases
    yield Case("bert, classification, CPU's layout", bert, SPECS["classification"], "fp32")


def _export(check: Check, case: Case) -> None:
    folder = check.folder / "".join(letter if letter.isalnum() else "-" for letter in case.name)
    write_checkpoint(folder, case.config, case.spec)
    _verified(check, case.name, folder, case.precision)


def _verified(check: Check, name: str, folder: Path, precision: str) -> None:
    """Export a checkpoint; record what was measured, also where it is too much. Raises what the export raises."""
    began = time.monotonic()
    row: dict[str, Any] = {"model": name, "precision": precision}
    try:
        bundle = export(folder, check.folder / f"{folder.name}-bundle", precision, tolerance_of=Tolerance.of)
    except ParityError as error:
        check.record.row("parity", **row, passed=False, **_numbers(error.measured), seconds=_since(began))
        raise
    parity = bundle.manifest.parity
    row |= {"layout": bundle.manifest.layout, "run on": _place(parity["check"])}
    check.record.row("parity", **row, passed=True, **_numbers(parity), seconds=_since(began))


def _numbers(parity: dict[str, Any]) -> dict[str, Any]:
    names = {
        "difference": "scaled_difference",
        "neighbours": "neighbours_difference",
        "relative error": "relative_error",
    }
    return {name: f"{parity[key]:.1e}" for name, key in names.items() if key in parity}


def _place(how: str) -> str:
    return "GPU" if how.endswith("run on a GPU") and not how.startswith("not") else "CPU"


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f}"


def _demos(check: Check) -> None:
    """Export the demo models where the weights that they belong to are installed."""
    from benchmarks.serve.load.running import ROOT

    folders = sorted(file.parent for file in (ROOT / "models").glob("*/task.json"))
    for folder in folders:
        try:
            resolve_base(TaskSpec.read(folder).base.get("name", ""))
        except CheckpointError as error:
            check.record.skip(f"demo models: {error}")
            return
        if check.small:
            check.record.skip("demo models: the small form leaves them out")
            return
        with check.record.step(f"demo {folder.name}"):
            _verified(check, f"demo {folder.name}", folder, "fp16")
