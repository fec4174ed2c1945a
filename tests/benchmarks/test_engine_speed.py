"""The benchmarks of the engine alone, on a model of random weights that is quick."""

from pathlib import Path

import pytest

from benchmarks.engine import speed
from benchmarks.engine.shapes import flops
from benchmarks.engine.texts import MIXED, in_batches, random_texts
from bert.config import BertConfig


def test_texts_are_cut_into_batches_in_their_order() -> None:
    texts = random_texts(MIXED, 5000)
    batches = in_batches(texts, 600)
    assert [text for batch in batches for text in batch] == texts
    assert all(sum(map(len, batch)) <= 600 for batch in batches)
    assert 30 < sum(map(len, texts)) / len(texts) < 60


def test_a_text_longer_than_a_batch_has_one_of_its_own() -> None:
    assert [len(batch) for batch in in_batches(random_texts("100", 300), 50)] == [1, 1, 1]


def test_operations_of_bert_large_at_384() -> None:
    """24 layers of 12 H^2 weights for each token, and attention: 2 * 302 M + 4 * 24 * 384 * 1024 a token."""
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    by_hand = 384 * (2 * 24 * 12 * 1024**2 + 24 * 4 * 384 * 1024)
    assert flops(config, random_texts("384", 384)) == pytest.approx(by_hand)


@pytest.mark.slow
def test_the_engine_is_measured_beside_pytorch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    brief = ["--models", "tiny", "--lengths", MIXED, "20", "--tokens", "400", "--batch-tokens", "200"]
    assert speed.main([*brief, "--device", "cpu", "--rounds", "1", "--trace", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| tiny | ")]
    assert [row[1:3] for row in rows[:4]] == [
        ["mixed", "ours"],
        ["mixed", "PyTorch, padded"],
        ["20", "ours"],
        ["20", "PyTorch, padded"],
    ]
    apart = [float(row[6].rstrip(" |")) for row in rows[:4]]
    assert max(apart) < 1e-4, "both compute the same"
    assert (tmp_path / "tiny" / "PyTorch-padded.json").stat().st_size > 0
