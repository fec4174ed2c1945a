"""Labels of the request's own, by a model of natural language inference (Yin et al. 2019, arXiv 1909.00161), or by one that
judges them all in one run (`bert.tasks.open_classification`).

Of the former each text and each label's hypothesis ("This example is sport.") are a run: does the one follow from the other?
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bert.tasks.classification import ALL_SCORES, Classification, Scoring, ranked
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats, sigmoid, softmax

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


def takes_labels(spec: TaskSpec) -> bool:
    """Tell whether requests may bring labels along, to choose from or to find."""
    prompt = spec.label_prompt or spec.class_prompt
    return prompt is not None or inference_of(spec) is not None


def decode(
    logits: Floats,
    labels: Sequence[str],
    meaning: Inference | None,
    scoring: Scoring = ALL_SCORES,
    *,
    multi_label: bool = False,
) -> Classification:
    """Turn the logits (C, K) of a text beside the hypothesis of each of C labels into its result; (C, 1) without `meaning`.

    The probabilities of the labels add up to 1. With `multi_label`, or one label, each is that of entailment against
    contradiction, or of its own logit. Labels of equal score keep their order.
    """
    logits = logits / (scoring.temperature or 1.0)
    if meaning is None:
        scores = sigmoid(logits[:, 0]) if multi_label or len(labels) == 1 else softmax(logits[:, 0])
    elif multi_label or len(labels) == 1:
        scores = softmax(logits[:, [meaning.contradiction, meaning.entailment]])[:, 1]
    else:
        scores = softmax(logits[:, meaning.entailment])
    return ranked(scores[None], labels, scoring)[0]
