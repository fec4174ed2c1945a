"""Learning from a teacher: the loss by hand, whatever the task, and teachers that do not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.special import log_softmax

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.checkpoint import load_into, save_checkpoint
from bert.nn.losses import IGNORED
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.engine.train_loop import StepData
from training.finetuning.batches import Dataset, EpochBatches
from training.finetuning.model import label_maps
from training.finetuning.trainer import FinetuneTrainer
from training.settings import FinetuneSettings
from training.tasks import task_class
from training.tasks.base import Feature, collate

Make = Callable[..., FinetuneSettings]
Begin = Callable[..., FinetuneTrainer]
Numbers = NDArray[np.floating[Any]]
TEMPERATURE, ALPHA = 3.0, 0.7
NER = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")


def save_teacher(folder: Path, spec: TaskSpec, seed: int = 7) -> Path:
    """Write a fine-tuned checkpoint with random weights, large enough to be sure of something."""
    tokenizer = Tokenizer.load(resolve_base(MINILM))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(seed)
    task = task_class(spec.task)(tokenizer, spec)
    save_checkpoint(task.model(config), folder, task.architecture, label_maps(spec))
    tokenizer.save(folder)
    spec.write(folder)
    return folder


@pytest.fixture
def run_of(begin: Begin, tmp_path: Path) -> Begin:
    """Return a maker of runs with a teacher, before their first step."""

    def make(spec: TaskSpec, **changes: Any) -> FinetuneTrainer:
        teacher = {"checkpoint": save_teacher(tmp_path / "teacher", spec), "temperature": TEMPERATURE}
        return begin(spec.task, teacher={**teacher, "alpha": ALPHA}, **changes)

    return make


def dataset(run: FinetuneTrainer) -> Dataset:
    assert isinstance(run.loop.data, EpochBatches)
    return run.loop.data.data


def soft(student: Numbers, teacher: Numbers) -> float:
    """Return Σ p log(p / q) at the temperature over the last axis, times its square, summed."""
    log_p = log_softmax(teacher.astype(np.float64) / TEMPERATURE, axis=-1)
    log_q = log_softmax(student.astype(np.float64) / TEMPERATURE, axis=-1)
    return float((np.exp(log_p) * (log_p - log_q)).sum() * TEMPERATURE**2)


def hard(student: Numbers, target: int) -> float:
    return float(-log_softmax(student.astype(np.float64), axis=-1)[target])


def of_class(feature: Feature, logits: list[Numbers]) -> tuple[float, float, int]:
    assert feature.soft is not None
    return soft(logits[0], feature.soft), hard(logits[0], feature.target), 1


def of_words(feature: Feature, logits: list[Numbers]) -> tuple[float, float, int]:
    assert feature.soft is not None
    at = [i for i, target in enumerate(feature.target) if target != IGNORED]
    labels = [hard(logits[0][i], feature.target[i]) for i in at]
    return soft(logits[0][at], feature.soft[at]), sum(labels), len(at)


def of_span(feature: Feature, logits: list[Numbers]) -> tuple[float, float, int]:
    assert feature.soft is not None
    (encoding,) = feature.encodings
    at = [i for i, part in enumerate(encoding.sequence_ids) if part == 1 or i == 0]
    softs = [soft(logits[0][at, end], feature.soft[at, end]) for end in (0, 1)]
    hards = [hard(logits[0][at, end], at.index(feature.target[end])) for end in (0, 1)]
    return sum(softs) / 2, sum(hards) / 2, 1


def of_choice(feature: Feature, logits: list[Numbers]) -> tuple[float, float, int]:
    assert feature.soft is not None
    scores = np.concatenate(logits)
    return soft(scores, feature.soft), hard(scores, feature.target), 1


@pytest.mark.parametrize(
    ("spec", "by_hand"),
    [
        (TaskSpec("classification", ("negative", "positive"), max_tokens=48), of_class),
        (TaskSpec("ner", NER, max_tokens=48), of_words),
        (TaskSpec("qa", max_tokens=48, max_question_tokens=20), of_span),
        (TaskSpec("multiple_choice", max_tokens=48), of_choice),
    ],
    ids=lambda value: value.task if isinstance(value, TaskSpec) else "",
)
def test_the_loss_of_a_step_is_that_by_hand(
    spec: TaskSpec,
    by_hand: Callable[[Feature, list[Numbers]], tuple[float, float, int]],
    run_of: Begin,
) -> None:
    run = run_of(spec)
    features = dataset(run).features[:6]
    parts = [by_hand(f, [np.asarray(x) for x in run.predict(f.encodings)]) for f in features]
    targets = sum(count for _, _, count in parts)
    softs, hards = sum(part[0] for part in parts) / targets, sum(part[1] for part in parts) / targets
    assert softs > 0.01
    batch = collate(features, run.task.tokenizer.pad_id, torch.device("cpu"))
    numbers = run.loop.step(StepData([batch], batch.tokens, 6, {}))
    assert numbers["loss"] == pytest.approx(ALPHA * softs + (1 - ALPHA) * hards, rel=1e-4)


def test_a_teacher_with_its_labels_in_another_order_says_the_same(run_of: Begin, tmp_path: Path) -> None:
    spec = TaskSpec("classification", ("positive", "negative"), max_tokens=48)
    run = run_of(spec)
    assert run.task.spec.labels == ("negative", "positive")
    feature = dataset(run).features[0]
    model = task_class("classification")(run.task.tokenizer, spec).model(
        BertConfig.read(tmp_path / "teacher")
    )
    load_into(model, tmp_path / "teacher")
    ids = torch.tensor(feature.encodings[0].ids[None].astype(np.int64))
    with torch.no_grad():
        expected = model.eval()(ids)[0].flip(0).numpy()
    assert feature.soft is not None
    np.testing.assert_allclose(feature.soft, expected, atol=1e-5)


def test_several_teachers_say_the_mean_of_their_logits(begin: Begin, tmp_path: Path) -> None:
    labels = (("negative", "positive"), ("positive", "negative"))
    folders = [
        save_teacher(tmp_path / str(i), TaskSpec("classification", labels[i], max_tokens=48), seed=i)
        for i in range(2)
    ]
    taught = ({"checkpoint": checkpoint} for checkpoint in (folders[0], [folders[1]], folders))
    runs = [begin("classification", teacher=teacher) for teacher in taught]
    one, other, both = (np.array([f.soft for f in dataset(run).features]) for run in runs)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_allclose(both, (one + other) / 2, atol=1e-6)


def test_no_teacher_in_a_list_is_refused(settings_for: Make) -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        settings_for("classification", teacher={"checkpoint": []})


def test_a_teacher_changes_nothing_of_the_students_first_weights(run_of: Begin, begin: Begin) -> None:
    taught = run_of(TaskSpec("classification", ("negative", "positive"), max_tokens=48))
    rows = dataset(taught).features[0].encodings
    np.testing.assert_array_equal(taught.predict(rows)[0], begin("classification").predict(rows)[0])


def test_a_teacher_of_other_labels_is_refused(run_of: Begin) -> None:
    with pytest.raises(ConfigError, match="knows the labels"):
        run_of(TaskSpec("classification", ("bad", "good"), max_tokens=64))


def test_a_teacher_of_pairs_is_refused_for_single_texts(run_of: Begin) -> None:
    with pytest.raises(ConfigError, match="has pair True, and the run False"):
        run_of(TaskSpec("classification", ("negative", "positive"), pair=True, max_tokens=64))


def test_similarity_has_no_teacher(settings_for: Make) -> None:
    with pytest.raises(ValidationError, match="similarity has none"):
        settings_for("similarity", teacher={"checkpoint": "x"})


def test_a_run_cannot_learn_from_the_checkpoint_that_it_writes(settings_for: Make, tmp_path: Path) -> None:
    """It would go on with another teacher than it began with."""
    with pytest.raises(ValidationError, match=r"teacher \(.*best\) is what this run writes"):
        settings_for("qa", teacher={"checkpoint": tmp_path / "run/best"})
