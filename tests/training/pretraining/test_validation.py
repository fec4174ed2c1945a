import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from bert.config import BertConfig
from training.engine.distributed import Processes
from training.pretraining.examples.base import MaskedExample
from training.pretraining.objectives.language_models import (
    LeftToRight,
    MaskedLanguageModel,
    MaskedLanguageModelWithPairs,
)
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.pretrain_batch import collate
from training.pretraining.validation import evaluate, unigram_entropy

V = 90
CONFIG = BertConfig(
    vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
    max_position_embeddings=40, initializer_range=0.3,
)  # fmt: skip


def examples(count: int = 30, pairs: bool = True, vocab_size: int = V) -> list[MaskedExample]:
    rng = np.random.default_rng(0)
    return [example(rng, int(rng.integers(6, 40)), pairs, vocab_size) for _ in range(count)]


def example(rng: np.random.Generator, tokens: int, pair: bool, vocab_size: int) -> MaskedExample:
    original = rng.integers(5, vocab_size, tokens).astype(np.int32)
    original[[0, -1]] = 1, 2
    special = np.zeros(tokens, np.bool_)
    special[[0, -1]] = True
    positions = np.sort(rng.choice(np.arange(1, tokens - 1), max(1, tokens // 7), replace=False)).astype(
        np.int32
    )
    ids = original.copy()
    ids[positions] = 3
    label = int(rng.integers(2)) if pair else -1
    segments = np.zeros(tokens, np.int8)
    return MaskedExample(ids, segments, positions, original[positions], special, original, label)


def slowly(objective: MaskedLanguageModelWithPairs, items: list[MaskedExample]) -> tuple[float, float, float]:
    """One text at a time, no padding, by the model's own forward pass."""
    model = objective.model.eval()
    losses, right, pairs = [], [], []
    for item in items:
        hidden = model.bert(torch.tensor(item.ids[None]).long(), torch.tensor(item.segment_ids[None]).long())
        for position, label in zip(item.positions, item.labels, strict=True):
            logits = model.score(hidden[0, int(position)])
            losses.append(float(-F.log_softmax(logits, -1)[int(label)]))
            right.append(int(logits.argmax()) == label)
        pairs.append(int(model.score_next_sentence(hidden)[0].argmax()) == item.pair_label)
    return float(np.mean(losses)), float(np.mean(right)), float(np.mean(pairs))


def with_pairs() -> MaskedLanguageModelWithPairs:
    torch.manual_seed(0)
    return MaskedLanguageModelWithPairs(CONFIG)


def test_scores_are_those_of_one_text_at_a_time() -> None:
    objective, items = with_pairs(), examples()
    found = evaluate(objective, items, pad_id=0)
    with torch.no_grad():
        expected = slowly(objective, items)
    assert (found["mlm_loss"], found["mlm_accuracy"], found["pair_accuracy"]) == pytest.approx(
        expected, abs=1e-5
    )
    assert found["perplexity"] == pytest.approx(math.exp(expected[0]), rel=1e-5)
    assert set(found) == {"mlm_loss", "mlm_accuracy", "pair_accuracy", "perplexity"}


def test_the_size_of_the_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(with_pairs(), examples(), pad_id=0)
    monkeypatch.setattr("training.pretraining.validation.BATCH_TOKENS", 64)
    parts = evaluate(with_pairs(), examples(), pad_id=0)
    assert parts == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("world", [2, 3, 7])
def test_the_shares_of_processes_add_up_to_the_scores_of_one(
    monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    monkeypatch.setattr("training.pretraining.validation.BATCH_TOKENS", 256)
    whole, sums, passes = evaluate(with_pairs(), examples(), pad_id=0), torch.zeros(5), list[int]()

    class OneOf(Processes):
        def sum_on_device(self, numbers: torch.Tensor) -> torch.Tensor:
            sums.add_(numbers)
            return numbers.copy_(sums)

    for rank in range(world):
        objective, mine = with_pairs(), list[int]()
        objective.model.bert.register_forward_hook(lambda *_, mine=mine: mine.append(1))
        found = evaluate(objective, examples(), 0, OneOf(rank, world, torch.device("cpu")))
        passes.append(len(mine))
    assert found == pytest.approx(whole, rel=1e-6)
    assert len(set(passes)) == 1  # of a model in parts all of them wait for one another


def test_a_model_that_knows_the_words_scores_full() -> None:
    class Oracle(MaskedLanguageModel):
        def logits(self, batch):  # type: ignore[no-untyped-def]
            return 100.0 * F.one_hot(batch.labels, V).float(), None

    found = evaluate(Oracle(CONFIG), examples(), pad_id=0)
    assert found["mlm_accuracy"] == 1.0 and "pair_accuracy" not in found
    assert found["perplexity"] == pytest.approx(1)


def test_looking_leaves_no_trace_in_the_run() -> None:
    objective = with_pairs()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for mode in (True, False):
        objective.train(mode)
        evaluate(objective, examples(), pad_id=0)
        assert objective.training is mode
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in objective.parameters())


def test_a_batch_is_encoded_once() -> None:
    """Words and pairs are told of the same hidden states."""
    objective, passes = with_pairs(), []
    objective.model.bert.register_forward_hook(lambda *_: passes.append(1))
    evaluate(objective, examples(), pad_id=0)
    assert len(passes) == 1


def test_only_labelled_pairs_count() -> None:
    objective, items = with_pairs(), examples()
    mixed = items + [replace(item, pair_label=-1) for item in items]
    assert evaluate(objective, mixed, 0) == pytest.approx(evaluate(objective, items, 0), rel=1e-5)
    assert "pair_accuracy" not in evaluate(objective, examples(pairs=False), 0)
    assert "pair_accuracy" not in evaluate(MaskedLanguageModel(CONFIG), items, 0)


def test_replaced_token_detection_is_scored_by_its_generator() -> None:
    objective = ReplacedToken(CONFIG)
    items = examples()
    found = evaluate(objective, items, 0)
    with torch.no_grad():
        loss = objective.eval()(collate(items, 0, 40, packed=True))["mlm"].mean
    assert found["mlm_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_model_without_a_masked_language_head_has_no_scores() -> None:
    assert evaluate(LeftToRight(CONFIG), examples(), 0) == {}
    assert evaluate(with_pairs(), [], 0) == {}


def test_bf16_moves_the_loss_a_little() -> None:
    exact, rough = (evaluate(with_pairs(), examples(), 0, bf16=bf16)["mlm_loss"] for bf16 in (False, True))
    assert rough == pytest.approx(exact, rel=0.02)
    assert rough != exact


def test_the_entropy_of_many_words_is_scipy_s() -> None:
    items = examples(200, vocab_size=25)
    counts = np.bincount(np.concatenate([item.original[1:-1] for item in items]))
    assert unigram_entropy(items) == pytest.approx(stats.entropy(counts), abs=0.005)
    assert unigram_entropy(items) == pytest.approx(math.log(20), abs=0.01)  # 5 to 24, each as likely
    assert unigram_entropy([]) == 0


def test_the_entropy_of_a_few_words_of_many_is_estimated_well() -> None:
    """Zipf's law over 20,000 words, as text has it; the plain formula is off by more than half a nat."""
    shares = 1 / np.arange(1, 20_001)
    shares /= shares.sum()
    words = np.random.default_rng(0).choice(20_000, 10_000, p=shares).astype(np.int32)
    none = np.zeros(len(words), np.bool_)
    sample = MaskedExample(words, none.astype(np.int8), words[:0], words[:0], none, words)
    assert stats.entropy(np.bincount(words)) < stats.entropy(shares) - 0.5
    assert unigram_entropy([sample]) == pytest.approx(stats.entropy(shares), abs=0.25)


@pytest.mark.parametrize("words", [[5], [5, 5, 5], [5, 6, 7]])
def test_the_entropy_of_hardly_any_words_is_a_number(words: list[int]) -> None:
    ids, none = np.array(words, np.int32), np.zeros(len(words), np.bool_)
    sample = MaskedExample(ids, none.astype(np.int8), ids[:0], ids[:0], none, ids)
    assert 0 <= unigram_entropy([sample]) < 5
