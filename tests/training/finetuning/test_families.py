"""Fine-tuning a relative of BERT: the result is one of its family, for `transformers` too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.weights import Checkpoint, read_checkpoint, read_weights
from bert.relatives.family import SEGMENTS
from bert.tokenizer import Tokenizer
from model_export.reference import Reference
from tests.support.checkpoints import SPECS
from tests.support.families import CLASSES, relative
from training.finetune import finetune
from training.settings import FinetuneSettings

Make = Callable[..., FinetuneSettings]
KINDS: dict[str, Any] = {
    "classification": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
}


def assert_answers(checkpoint: Checkpoint, theirs: torch.nn.Module) -> None:
    """Fail unless the checkpoint's weights, as they are read for export, answer as a model of transformers."""
    encoding = checkpoint.tokenizer.single(checkpoint.tokenizer.pieces(["Ada lived in a warm London."])[0])
    positions = [0] if checkpoint.spec.task == "classification" else list(range(len(encoding)))
    found = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights).outputs(
        encoding.ids, encoding.segment_ids, torch.tensor(positions).numpy()
    )
    with torch.no_grad():
        expected = theirs.eval()(input_ids=torch.tensor(encoding.ids)[None].long()).logits[0]
    assert abs(found - expected.numpy()).max() < 1e-5


@pytest.fixture(params=CLASSES)
def family_base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tokenizer, folder = Tokenizer.load(resolve_base(MINILM)), tmp_path / str(request.param)
    relative(request.param, SPECS["similarity"], vocab_size=tokenizer.vocab_size).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_what_is_trained_loads_as_its_own_class(task: str, family_base: Path, settings_for: Make) -> None:
    best = finetune(settings_for(task, base=family_base))
    theirs, report = KINDS[task].from_pretrained(best, output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.model_type == family_base.name
    checkpoint = read_checkpoint(best)
    assert theirs.config.id2label == dict(enumerate(checkpoint.spec.labels))
    assert checkpoint.config.has_segments == checkpoint.weights[SEGMENTS].any()
    trained, before = checkpoint.weights, read_weights(family_base)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert abs(trained[name] - before[name]).max() > 0
    with torch.no_grad():
        answer = theirs(**transformers.AutoTokenizer.from_pretrained(best)("a film", return_tensors="pt"))
    assert answer.logits.shape[-1] == len(checkpoint.spec.labels)
    assert_answers(checkpoint, theirs)


# peft reads an attribute that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("task", ["classification", "ner"])
def test_an_adapter_loads_in_peft_over_transformers(task: str, family_base: Path, settings_for: Make) -> None:
    best = finetune(settings_for(task, base=family_base, lora={"rank": 4}))
    checkpoint = read_checkpoint(best)
    merged, before = checkpoint.weights, read_weights(family_base)
    kind = KINDS[task]
    base = kind.from_pretrained(family_base, num_labels=len(checkpoint.spec.labels))
    theirs = peft.PeftModel.from_pretrained(base, str(best)).eval()
    assert_answers(checkpoint, theirs)
    again = finetune(settings_for(task, base=family_base, lora={"rank": 4}, start_from=best, resume=False))
    assert read_checkpoint(again).spec.labels == checkpoint.spec.labels
    for name in ("attention.self.query", "output.dense", "intermediate.dense"):
        tensor = f"bert.encoder.layer.1.{name}.weight"
        assert abs(merged[tensor] - before[tensor]).max() > 0
