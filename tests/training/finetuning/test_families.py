"""Fine-tuning a relative of BERT: the result is one of its family, for `transformers` too."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.weights import read_checkpoint, read_weights
from bert.families import SEGMENTS
from bert.tokenizer import Tokenizer
from model_export.reference import Reference
from tests.support.checkpoints import SPECS
from tests.support.families import CLASSES, relative
from training.finetune import finetune
from training.settings import FinetuneSettings

Make = Callable[..., FinetuneSettings]


@pytest.fixture(params=CLASSES)
def family_base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tokenizer, folder = Tokenizer.load(resolve_base(MINILM)), tmp_path / str(request.param)
    relative(request.param, SPECS["similarity"], vocab_size=tokenizer.vocab_size).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_what_is_trained_loads_as_its_own_class(task: str, family_base: Path, settings_for: Make) -> None:
    best = finetune(settings_for(task, base=family_base))
    kind = {
        "classification": transformers.AutoModelForSequenceClassification,
        "ner": transformers.AutoModelForTokenClassification,
    }[task]
    theirs, report = kind.from_pretrained(best, output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.model_type == family_base.name
    checkpoint = read_checkpoint(best)
    assert theirs.config.id2label == dict(enumerate(checkpoint.spec.labels))
    assert not checkpoint.weights[SEGMENTS].any()
    trained, before = checkpoint.weights, read_weights(family_base)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert abs(trained[name] - before[name]).max() > 0
    with torch.no_grad():
        answer = theirs(**transformers.AutoTokenizer.from_pretrained(best)("a film", return_tensors="pt"))
    assert answer.logits.shape[-1] == len(checkpoint.spec.labels)
    encoding = checkpoint.tokenizer.single(checkpoint.tokenizer.pieces(["Ada lived in a warm London."])[0])
    positions = [0] if task == "classification" else list(range(len(encoding)))
    found = Reference(checkpoint.config, checkpoint.spec, trained).outputs(
        encoding.ids, encoding.segment_ids, torch.tensor(positions).numpy()
    )
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(encoding.ids)[None].long()).logits[0]
    assert abs(found - expected.numpy()).max() < 1e-5


def test_an_adapter_is_merged_into_its_base(family_base: Path, settings_for: Make) -> None:
    best = finetune(settings_for("ner", base=family_base, lora={"rank": 4}))
    merged, before = read_checkpoint(best).weights, read_weights(family_base)
    for name in ("attention.self.query", "output.dense", "intermediate.dense"):
        tensor = f"bert.encoder.layer.1.{name}.weight"
        assert abs(merged[tensor] - before[tensor]).max() > 0
