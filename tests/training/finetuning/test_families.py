"""Fine-tuning a relative of BERT: the result is one of its family, for `transformers` too."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers

from bert.bodies.body import SEGMENTS
from bert.checkpoint.weights import read_checkpoint, read_weights
from tests.support.families import CLASSES, KINDS, assert_answers
from training.finetuning.trainer import FinetuneTrainer

Maker = Callable[..., Path]
# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


@pytest.fixture(params=CLASSES)
def base(request: pytest.FixtureRequest, family_base: Maker) -> Path:
    return family_base(request.param)


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_what_is_trained_loads_as_its_own_class(task: str, base: Path, trained: Maker) -> None:
    best = trained(task, base=base, max_steps=3)
    theirs, report = KINDS[task].from_pretrained(best, output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.model_type == base.name
    checkpoint = read_checkpoint(best)
    assert theirs.config.id2label == dict(enumerate(checkpoint.spec.labels))
    around = {"bos": checkpoint.tokenizer.cls_id, "eos": checkpoint.tokenizer.sep_id}
    for name, number in {**around, "cls": around["bos"], "sep": around["eos"]}.items():
        assert getattr(theirs.config, f"{name}_token_id", None) in (None, number)
    segments = checkpoint.weights.get(SEGMENTS, np.zeros((2, 1)))
    assert checkpoint.config.has_segments == np.any(segments != segments[0])
    after, before = checkpoint.weights, read_weights(base)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert abs(after[name] - before[name]).max() > 0
    stated = transformers.AutoTokenizer.from_pretrained(best).model_max_length
    assert stated == checkpoint.config.max_position_embeddings
    with torch.no_grad():
        answer = theirs(**transformers.AutoTokenizer.from_pretrained(best)("a film", return_tensors="pt"))
    assert answer.logits.shape[-1] == len(checkpoint.spec.labels)
    assert_answers(checkpoint, theirs)


@pytest.mark.parametrize(
    "base", ["roberta", "electra", "albert", "mpnet", "deberta-v2", "modernbert"], indirect=True
)
@pytest.mark.parametrize("task", ["qa", "multiple_choice"])
def test_heads_of_other_tasks_load_too(task: str, base: Path, trained: Maker) -> None:
    best = trained(task, base=base, max_steps=3)
    theirs, report = KINDS[task].from_pretrained(best, output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.model_type == base.name
    assert_answers(read_checkpoint(best), theirs)


@pytest.mark.parametrize("base", ["roberta", "electra", "deberta-v2", "modernbert"], indirect=True)
def test_an_adapter_has_the_head_of_its_class(base: Path, trained: Maker) -> None:
    best = trained("multiple_choice", base=base, max_steps=2, lora={"rank": 4})
    bare = KINDS["multiple_choice"].from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(bare, str(best)).get_base_model()
    assert_answers(read_checkpoint(best), theirs)


@pytest.mark.parametrize("base", ["roberta", "distilbert", "modernbert"], indirect=True)
def test_an_adapter_of_embeddings_loads_over_the_bare_class(base: Path, trained: Maker) -> None:
    best = trained("similarity", base=base, max_steps=2, lora={"rank": 4})
    bare = transformers.AutoModel.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(bare, str(best)).merge_and_unload()
    checkpoint, name = read_checkpoint(best), "bert.encoder.layer.1.output.dense.weight"
    merged = {checkpoint.config.family.bert_name(own): x.numpy() for own, x in theirs.state_dict().items()}
    np.testing.assert_allclose(merged[name], checkpoint.weights[name], atol=1e-6)
    assert abs(merged[name] - read_weights(base)[name]).max() > 0


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_an_adapter_loads_in_peft_over_transformers(
    task: str, base: Path, trained: Maker, begin: Callable[..., FinetuneTrainer]
) -> None:
    best = trained(task, base=base, max_steps=3, lora={"rank": 4})
    checkpoint = read_checkpoint(best)
    merged, before = checkpoint.weights, read_weights(base)
    bare = KINDS[task].from_pretrained(base, num_labels=len(checkpoint.spec.labels))
    theirs = peft.PeftModel.from_pretrained(bare, str(best)).get_base_model()
    assert_answers(checkpoint, theirs)
    again = begin(task, base=base, lora={"rank": 4}, start_from=best)
    assert again.task.spec.labels == checkpoint.spec.labels
    for name in checkpoint.config.family.linear_layers:
        tensor = f"bert.encoder.layer.1.{name}.weight"
        assert abs(merged[tensor] - before[tensor]).max() > 0
