"""Tiny models learn made-up languages: what only both sides of a word tell, and whether texts belong together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert.config import BertConfig
from tests.support.languages import SPECIAL, middle_of, mirror, topics, write_corpus
from training.corpus.shards import Corpus
from training.engine.distributed import Processes
from training.pretraining.data import Batches, held_out_examples, masking
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.objectives import build
from training.pretraining.objectives.base import Objective, encode
from training.pretraining.objectives.language_models import LeftToRight, causal_mask
from training.pretraining.pretrain_batch import collate
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import make_loop
from training.pretraining.validation import evaluate

pytestmark = pytest.mark.slow
NAMES = 4


def trained(corpus: Path, **values: Any) -> tuple[PretrainSettings, Objective]:
    """Train a model of two layers for some seconds."""
    settings = PretrainSettings(
        **{
            "corpus": corpus, "output_dir": Path("unused"), "batch_size": 64, "max_tokens": 32, "warmup_ratio": 0.1,
            "learning_rate": 2e-3, "adam_beta2": 0.98, **values,
        }
    )  # fmt: skip
    prepared, special = Corpus.open(corpus), SpecialIds.load(corpus)
    config = BertConfig(
        vocab_size=prepared.vocab_size, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    alone = Processes(0, 1, torch.device("cpu"))
    batches = Batches(settings, prepared, masking(settings, prepared, special), alone)
    objective = build(settings, config)
    for _ in make_loop(settings, objective, batches, alone).steps():
        pass
    return settings, objective.eval()


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(
        tmp_path_factory.mktemp("mirror") / "corpus", 2 * NAMES + NAMES**2, mirror(400, names=NAMES)
    )


def middles(special: SpecialIds) -> list[MaskedExample]:
    """Every sentence "left middle right" of the language once, the middle masked."""
    found = []
    for left in range(NAMES):
        for right in range(NAMES):
            middle = int(middle_of(np.array(left), np.array(right), NAMES))
            words = np.array([left, middle, NAMES + NAMES**2 + right]) + len(SPECIAL)
            original = np.array([special.cls, *words, special.sep], np.int32)
            ids = original.copy()
            ids[2] = special.mask
            found.append(
                MaskedExample(
                    ids=ids, segment_ids=np.zeros(5, np.int8), positions=np.array([2], np.int32),
                    labels=original[[2]], special=np.isin(original, [special.cls, special.sep]), original=original,
                )
            )  # fmt: skip
    return found


def test_a_word_that_both_sides_decide_is_learned(mirrored: Path) -> None:
    _, objective = trained(
        mirrored,
        objective="mlm",
        examples="single",
        masking={"rate": 0.3},
        batch_size=32,
        learning_rate=4e-3,
        max_steps=500,
    )
    examples = middles(SpecialIds.load(mirrored))
    found = evaluate(objective, examples, objective.model.config.pad_token_id)
    assert found["mlm_accuracy"] > 0.95


def test_left_to_right_it_stays_a_guess(mirrored: Path) -> None:
    _, objective = trained(
        mirrored, objective="left_to_right", examples="single", learning_rate=3e-3, max_steps=200
    )
    assert isinstance(objective, LeftToRight)
    batch = collate(middles(SpecialIds.load(mirrored)), objective.model.config.pad_token_id, 5, packed=False)
    with torch.no_grad():
        hidden = encode(objective.model, batch, batch.original_ids, causal_mask(batch))
        logits = objective.model.score(hidden[:, 1])  # the left word foretells the middle one
    accuracy = (logits.argmax(-1) == batch.labels).float().mean()
    assert accuracy < 0.4  # chance is 1 in 4
    # It did learn what there is to learn: that one of the left word's own middle words comes.
    first = len(SPECIAL) + NAMES
    own = logits.softmax(-1)[:, first : first + NAMES**2].view(NAMES, NAMES, NAMES, NAMES)
    assert own.diagonal(dim1=0, dim2=2).sum(1).min() > 0.9


def test_whether_texts_belong_together_is_learned(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", 48, topics(600, count=16, words=3), held_out=60)
    settings, objective = trained(
        corpus, objective="mlm+nsp", examples="pairs", max_tokens=40, learning_rate=4e-3, max_steps=200
    )
    prepared = Corpus.open(corpus)
    examples = held_out_examples(settings, prepared, masking(settings, prepared, SpecialIds.load(corpus)))
    found = evaluate(objective, examples, objective.model.config.pad_token_id)
    # One random text in 16 is of the same topic by chance and cannot be told: 97% is what can be reached.
    assert found["pair_accuracy"] > 0.9
