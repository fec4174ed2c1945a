"""Labels of the request's own, by a model of natural language inference (Yin et al. 2019, arXiv 1909.00161).

The model says of each text and each label's hypothesis ("This example is sport.") whether the one follows from the other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bert.tasks.classification import ALL_SCORES, Classification, Scoring, ranked
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats, softmax

# Stems of the labels of natural language inference, in the languages that checkpoints of the hub have them.
_ENTAILS = re.compile(r"entail|implicaz|implicac|implikation|enthalten|含意|蕴含|蕴涵|следован|함의")
_CONTRADICTS = re.compile(r"(not?|non)[ _-]?entail|contradic|contraddi|widerspr|矛盾|противореч|모순")


@dataclass(frozen=True, slots=True)
class Inference:
    """Places of two outputs of a model of natural language inference."""

    entailment: int
    contradiction: int
    """A model of two outputs has one that is not entailment: contradiction or neutral."""


def is_of_inference(label: str) -> bool:
    """Tell whether a label is one of natural language inference."""
    return any(stems.match(label.lower()) for stems in (_ENTAILS, _CONTRADICTS))


def inference_of(spec: TaskSpec) -> Inference | None:
    """Return what the model's outputs mean by the names of its labels; None unless one of them is meant for each."""
    if spec.task != "classification" or spec.problem_type != "single_label":
        return None
    places = [
        [place for place, label in enumerate(spec.labels) if stems.match(label.lower())]
        for stems in (_ENTAILS, _CONTRADICTS)
    ]
    return Inference(places[0][0], places[1][0]) if all(len(found) == 1 for found in places) else None


def decode(
    logits: Floats,
    labels: Sequence[str],
    meaning: Inference,
    scoring: Scoring = ALL_SCORES,
    *,
    multi_label: bool = False,
) -> Classification:
    """Turn the logits (C, K) of a text beside the hypothesis of each of C labels into its result.

    The probabilities of the labels add up to 1. With `multi_label`, or one label, each is that of entailment against
    contradiction. Labels of equal score keep their order.
    """
    logits = logits / (scoring.temperature or 1.0)
    if multi_label or len(labels) == 1:
        scores = softmax(logits[:, [meaning.contradiction, meaning.entailment]])[:, 1]
    else:
        scores = softmax(logits[:, meaning.entailment])
    return ranked(scores[None], labels, scoring)[0]
