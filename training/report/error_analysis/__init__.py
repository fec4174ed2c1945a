"""What a model gets wrong on held-out data, task by task: counts, scores by class, the worst mistakes."""

from training.report.error_analysis.answers import answer_findings
from training.report.error_analysis.base import TRUNCATED, Baseline, Findings, Mistake
from training.report.error_analysis.entities import entity_findings
from training.report.error_analysis.texts import (
    choice_findings,
    class_findings,
    multi_label_findings,
    number_findings,
)

__all__ = [
    "TRUNCATED",
    "Baseline",
    "Findings",
    "Mistake",
    "answer_findings",
    "choice_findings",
    "class_findings",
    "entity_findings",
    "multi_label_findings",
    "number_findings",
]
