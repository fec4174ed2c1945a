"""What a user is told, before and after: the evidence by which `--precision auto` judges 8 bits without labelled data.

Top labels and tags are judged at every export (`verify.py`). Here is what tells as much of the other tasks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert import metrics
from bert.encoding import Window
from bert.errors import ParityError
from bert.tasks import spans
from bert.tasks.spec import TaskSpec
from model_export.batch import Text
from model_export.reference import Floats
from model_export.tolerance import Tolerance

Answer = tuple[int, int] | None


def check_agreement(
    spec: TaskSpec,
    texts: Sequence[Text],
    expected: Sequence[Floats],
    found: Sequence[Floats],
    tolerance: Tolerance,
) -> dict[str, Any]:
    """Compare answers (qa) or rankings (similarity, regression) on unlabelled texts; returns what was measured.

    Of tasks with labels or tags nothing is left to compare. Raises ParityError where too much differs, and for a task
    of which nothing here tells how good it stays.
    """
    if spec.task in ("fill_mask", "multiple_choice"):
        raise ParityError(
            f"without a score on labelled data nothing tells how good a {spec.task} model stays"
        )
    if spec.task == "qa":
        return _same_answers(spec, texts, expected, found, tolerance)
    if spec.task == "similarity" or spec.problem == "regression":
        return _same_order(spec, expected, found, tolerance)
    return {}


def answers_of(spec: TaskSpec, texts: Sequence[Text], outputs: Sequence[Floats]) -> list[Answer]:
    """Return each paragraph's answer as (start, end) in code points; None: the paragraph has none."""
    return [_answer(spec, text, scores) for text, scores in zip(texts, outputs, strict=True)]


def _answer(spec: TaskSpec, text: Text, scores: Floats) -> Answer:
    encoding = text.encoding
    pieces = int((encoding.sequence_ids == 1).sum())
    window = Window(encoding, 0, pieces)
    # Only places are compared, so any text of the right length will do.
    found = spans.decode(" " * int(encoding.offsets.max()), [window], [scores], spec)
    return None if found.start is None or found.end is None else (found.start, found.end)


def _same_answers(
    spec: TaskSpec,
    texts: Sequence[Text],
    expected: Sequence[Floats],
    found: Sequence[Floats],
    tolerance: Tolerance,
) -> dict[str, Any]:
    was, is_now = answers_of(spec, texts, expected), answers_of(spec, texts, found)
    changed = sum(a != b for a, b in zip(was, is_now, strict=True))
    measured = {"answers": len(was), "changed_answers": changed}
    allowed = tolerance.labels_that_may_change(len(was))
    if changed > allowed:
        raise ParityError(
            f"{changed} of {len(was)} answers differ from the checkpoint's, and {allowed} may",
            measured=measured,
        )
    return measured


def _same_order(
    spec: TaskSpec, expected: Sequence[Floats], found: Sequence[Floats], tolerance: Tolerance
) -> dict[str, Any]:
    agreement = metrics.spearman(_ranked(spec, expected), _ranked(spec, found))
    measured = {"rank_correlation": agreement}
    if not agreement >= tolerance.same_labels:  # also for nan
        raise ParityError(
            f"the rank correlation with the checkpoint's scores is {agreement:.4f}, and "
            f"{tolerance.same_labels:g} is needed",
            measured=measured,
        )
    return measured


def _ranked(spec: TaskSpec, outputs: Sequence[Floats]) -> Floats:
    """Return what is ranked: the numbers, or the likeness of every two texts."""
    rows = np.concatenate(outputs)
    if spec.task != "similarity":
        return rows[:, 0]
    likeness: Floats = rows @ rows.T
    return likeness[np.triu_indices(len(rows), k=1)]
