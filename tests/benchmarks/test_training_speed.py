"""What the benchmark of training speed compares: both baselines train on the same, and only what is timed counts."""

from pathlib import Path

import pytest
import transformers

from benchmarks.train import speed, trainer
from benchmarks.train.tasks import Mark, TrainingSpeed, measured
from bert.checkpoint.base_models import MINILM, resolve_base
from bert.data.rows import TextColumns
from bert.data.squad import read_squad
from bert.data.tables import read_table
from bert.errors import CheckpointError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.tasks.qa import QaFinetuning
from training.tasks.sequence import SequenceFinetuning

SAMPLES = Path(__file__).parents[2] / "examples" / "data"


@pytest.fixture(scope="module")
def base() -> Path:
    try:
        return resolve_base(MINILM)
    except CheckpointError as error:
        pytest.skip(str(error))


def test_both_train_on_the_same_windows_and_answers(base: Path) -> None:
    examples = read_squad(SAMPLES / "qa-train.json")
    spec = TaskSpec("qa", max_tokens=40, stride=8, max_question_tokens=20, allows_no_answer=True)
    features = QaFinetuning(Tokenizer.load(base), spec).features(examples)
    rows = trainer.window_rows(transformers.AutoTokenizer.from_pretrained(base), examples, 40, 8)
    assert len(rows) > len(examples)
    for row, feature in zip(rows, features, strict=True):
        (encoding,) = feature.encodings
        assert row["input_ids"] == encoding.ids.tolist()
        assert row["token_type_ids"] == encoding.segment_ids.tolist()
        assert (row["start_positions"], row["end_positions"]) == feature.target
    assert {bool(row["end_positions"]) for row in rows} == {True, False}


def test_both_train_on_the_same_texts_and_labels(base: Path) -> None:
    examples = read_table(SAMPLES / "sentiment-train.csv", TextColumns())
    spec = TaskSpec("classification", labels=("negative", "positive"), max_tokens=128)
    features = SequenceFinetuning(Tokenizer.load(base), spec).features(examples)
    rows = trainer.text_rows(transformers.AutoTokenizer.from_pretrained(base), examples)
    for row, feature in zip(rows, features, strict=True):
        (encoding,) = feature.encodings
        assert (row["input_ids"], row["labels"]) == (encoding.ids.tolist(), feature.target)


def test_the_first_steps_are_not_timed() -> None:
    marks = [
        Mark(seconds, tokens, loss)
        for seconds, tokens, loss in ((9, 10, 4), (10, 20, 3), (12, 60, 2), (14, 100, 1))
    ]
    assert measured(marks, 2) == TrainingSpeed(80 / 4, 4, 1, 25)
    assert measured(marks, 100) == measured(marks, 2)
    assert measured(marks[:2], 5) == TrainingSpeed(10 / 1, 4, 3, 10)


def test_ratios_are_those_of_a_round_and_first_losses_are_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = [
        {"ours": TrainingSpeed(ours, first, 1.0, 9.0), "Trainer": TrainingSpeed(theirs, 5.9, 1.0, 9.0)}
        for ours, theirs, first in ((20.0, 10.0, 5.0), (30.0, 10.0, 5.0), (8.0, 1.0, 5.0))
    ]
    assert speed.rows("qa", rounds)[0] == "| qa | ours | 20 | 3.00 | 2.00, 8.00 | 5.00 | 1.00 | 9 |"
    assert speed.are_alike("qa", rounds)
    rounds[0]["ours"] = TrainingSpeed(20.0, 3.0, 1.0, 9.0)
    assert not speed.are_alike("qa", rounds)
    assert "first losses differ" in capsys.readouterr().err
