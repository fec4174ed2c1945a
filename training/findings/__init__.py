"""What a model gets wrong on held-out data, task by task: counts, scores by class, the worst mistakes."""

from collections.abc import Callable, Sequence
from typing import Any

from training.findings.answers import answer_findings
from training.findings.base import Findings, Mistake
from training.findings.entities import entity_findings
from training.findings.texts import choice_findings, class_findings, multi_label_findings, number_findings

__all__ = [
    "Findings",
    "Mistake",
    "answer_findings",
    "choice_findings",
    "class_findings",
    "entity_findings",
    "find",
    "multi_label_findings",
    "number_findings",
]


def find(
    task: str, examples: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str] = (), **more: Any
) -> Findings:
    """Pick by task or problem: ner, qa, multiple_choice, similarity, regression, multi_label, classification.

    Predictions are of the kind that the function for the task says; `more` is passed on to it.
    """
    if task == "multi_label":
        return multi_label_findings(examples, predictions, labels)
    if task in ("single_label", "classification"):
        return class_findings(examples, predictions, labels, more.get("confidences"))
    by_task: dict[str, Callable[[Sequence[Any], Sequence[Any]], Findings]] = {
        "ner": entity_findings,
        "qa": answer_findings,
        "multiple_choice": choice_findings,
        "similarity": number_findings,
        "regression": number_findings,
    }
    return by_task[task](examples, predictions)
