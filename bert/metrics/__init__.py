"""Scores of the tasks, numpy only. Gold comes first in every call; scores are shares of 1, never percent.

They agree with the tools that the field reports: scikit-learn, scipy, seqeval and the official SQuAD scripts.
"""

from bert.metrics.classification import (
    accuracy,
    confusion_matrix,
    f1_binary,
    f1_macro,
    f1_multi_label,
    matthews,
)
from bert.metrics.correlation import pearson, spearman
from bert.metrics.entities import EntityScores, TypeScores, bio_spans, entity_f1
from bert.metrics.squad import (
    AnswerScores,
    NullThreshold,
    SquadV2Scores,
    best_null_threshold,
    normalize_answer,
    squad_em_f1,
    squad_v2,
)

__all__ = [
    "AnswerScores",
    "EntityScores",
    "NullThreshold",
    "SquadV2Scores",
    "TypeScores",
    "accuracy",
    "best_null_threshold",
    "bio_spans",
    "confusion_matrix",
    "entity_f1",
    "f1_binary",
    "f1_macro",
    "f1_multi_label",
    "matthews",
    "normalize_answer",
    "pearson",
    "spearman",
    "squad_em_f1",
    "squad_v2",
]
