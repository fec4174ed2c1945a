"""Exports in float16: each is verified on the GPU against the checkpoint in float32; on a CPU in small, in numpy."""

from pathlib import Path
from typing import Any

import pytest

from bert.tasks.spec import TaskSpec
from model_export.export import export
from model_export.verify.parity import Tolerance
from tests.support.gpu import ON_GPU, pick, write_checkpoint

pytestmark = pytest.mark.gpu

WIDTH = pick(
    {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 2},
    {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2},
)
SENTIMENT = TaskSpec("classification", ("bad", "good", "neither"), max_tokens=512)
DEBERTA = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
CASES: dict[str, tuple[TaskSpec, dict[str, Any]]] = {
    "classification": (SENTIMENT, {}),
    "ner": (TaskSpec("ner", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_tokens=512, stride=64), {}),
    "pairs": (TaskSpec("classification", ("no", "yes"), pair=True, max_tokens=512), {}),
    "qa": (TaskSpec("qa", max_tokens=384, stride=128, allows_no_answer=True), {}),
    "similarity": (TaskSpec("similarity", max_tokens=512), {}),
    "multiple_choice": (TaskSpec("multiple_choice", max_tokens=512), {}),
    "fill_mask": (TaskSpec("fill_mask", max_tokens=512), {}),
    # In long texts a graph may take other operators.
    "modernbert": (
        TaskSpec("classification", SENTIMENT.labels, max_tokens=1024),
        {"model_type": "modernbert", "max_position_embeddings": 8192},
    ),
    "deberta-v3": (
        SENTIMENT,
        {
            "model_type": "deberta-v2", **DEBERTA, "position_buckets": 256, "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "mpnet": (
        SENTIMENT,
        {"model_type": "mpnet", "relative_attention_num_buckets": 32, "max_position_embeddings": 514},
    ),
}  # fmt: skip
"""Name → task, and what differs from BERT."""


@pytest.mark.parametrize("name", pick(list(CASES), ["classification", "modernbert"]))
def test_a_float16_export_is_within_its_tolerance(name: str, tmp_path: Path) -> None:
    spec, config = CASES[name]
    folder = write_checkpoint(tmp_path / "checkpoint", spec, **{"model_type": "bert", **WIDTH, **config})
    manifest = export(folder, tmp_path / "bundle", "fp16", tolerance_of=Tolerance.of).manifest
    found = {key: f"{value:.1e}" for key, value in manifest.parity.items() if isinstance(value, float)}
    print(name, found)
    assert manifest.precision == "fp16" and manifest.layout == "flat"
    ran = str(manifest.parity["check"])
    assert (ran.endswith("run on a GPU") and not ran.startswith("not")) == ON_GPU, ran
