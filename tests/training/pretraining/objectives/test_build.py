"""Settings name an objective, and that is what is built."""

from pathlib import Path
from typing import Any, get_args

import pytest

from bert.nn.checkpoint import save_checkpoint
from tests.support.every_objective import MAKERS, teacher
from tests.support.objectives import config
from training.pretraining import settings as names
from training.pretraining.objectives import build
from training.pretraining.settings import PretrainSettings

EXAMPLES = {"mlm+sop": "sentence_order"}


@pytest.mark.parametrize("name", get_args(names.Objective))
def test_every_name_of_the_settings_is_built(name: str, tmp_path: Path) -> None:
    shape = config()
    save_checkpoint(teacher(shape), tmp_path, "BertForMaskedLM", {})
    values: dict[str, Any] = {
        "corpus": tmp_path,
        "output_dir": tmp_path,
        "max_steps": 1,
        "objective": name,
        "examples": EXAMPLES.get(name, "pairs"),
        "masking": {"kind": "spans" if name == "span" else "tokens"},
    }
    if name == "distillation":
        values["distillation"] = {"teacher": tmp_path, "soft_weight": 3.0}
    objective = build(PretrainSettings(**values), shape)
    expected = MAKERS[name](shape)
    assert type(objective) is type(expected)
    assert objective.model.config == shape
    changed = {"soft_mlm": 3.0} if name == "distillation" else {}
    assert objective.weights == {**expected.weights, **changed}
