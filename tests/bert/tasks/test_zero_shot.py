"""Labels of a request, by what a model of natural language inference says of their hypotheses."""

import numpy as np
import pytest

from bert.tasks.classification import Scoring
from bert.tasks.spec import TaskSpec
from bert.tasks.zero_shot import Inference, decode, inference_of

LOGITS = np.array([[0.5, 0.0, 1.0], [2.0, 0.1, -1.0], [0.5, 3.0, 1.0]], np.float32)
MEANING = Inference(entailment=0, contradiction=2)
NAMES = ["sport", "politics", "film"]


@pytest.mark.parametrize(
    ("labels", "meaning"),
    [
        (("entailment", "neutral", "contradiction"), Inference(0, 2)),
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), Inference(2, 0)),
        (("entailment", "contradiction", "neutral"), Inference(0, 1)),
        (("entailment", "not_entailment"), Inference(0, 1)),
        (("not-entailment", "entails"), Inference(1, 0)),
        (("矛盾", "中立", "蕴含"), Inference(2, 0)),
        (("LABEL_0", "LABEL_1", "LABEL_2"), None),
        (("entailment", "neutral"), None),
        (("entailment", "entailed", "contradiction"), None),
        (("positive", "negative"), None),
    ],
)
def test_outputs_are_known_by_their_labels_and_never_guessed(
    labels: tuple[str, ...], meaning: Inference | None
) -> None:
    assert inference_of(TaskSpec("classification", labels, pair=True)) == meaning


def test_a_model_of_several_labels_or_numbers_is_not_asked() -> None:
    labels = ("entailment", "contradiction")
    assert inference_of(TaskSpec("classification", labels, "multi_label")) is None
    assert inference_of(TaskSpec("ner", ("O", *labels))) is None


def test_probabilities_of_all_labels_add_up_to_one() -> None:
    found = decode(LOGITS, NAMES, MEANING)
    powers = np.exp([0.5, 2.0, 0.5])
    assert [label for label, _ in found.scores] == ["politics", "sport", "film"], (
        "equals in the order of the request"
    )
    assert dict(found.scores) == pytest.approx(dict(zip(NAMES, powers / powers.sum(), strict=True)))
    assert (found.label, found.score) == found.scores[0]


@pytest.mark.parametrize(("count", "multi_label"), [(3, True), (1, False), (1, True)])
def test_a_label_by_itself_is_entailment_against_contradiction(count: int, multi_label: bool) -> None:
    found = decode(LOGITS[:count], NAMES[:count], MEANING, multi_label=multi_label)
    expected = {
        name: 1 / (1 + np.exp(row[2] - row[0])) for name, row in zip(NAMES, LOGITS[:count], strict=False)
    }
    assert dict(found.scores) == pytest.approx(expected)


def test_scoring_cuts_and_cools() -> None:
    found = decode(LOGITS, NAMES, MEANING, Scoring(top_k=1, temperature=2.0))
    powers = np.exp(np.array([0.5, 2.0, 0.5]) / 2)
    assert dict(found.scores) == {"politics": pytest.approx(powers[1] / powers.sum())}
    assert decode(LOGITS, NAMES, MEANING, Scoring(threshold=0.5)).scores[1:] == ()
