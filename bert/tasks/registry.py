"""The table of tasks. A new task is one file in this folder and one line here."""

from bert.tasks.classification import ClassificationTask
from bert.tasks.fill_mask import FillMaskTask
from bert.tasks.multiple_choice import MultipleChoice
from bert.tasks.ner import NerTask
from bert.tasks.qa import QaTask
from bert.tasks.similarity import SimilarityTask
from bert.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        ClassificationTask(),
        NerTask(),
        QaTask(),
        SimilarityTask(),
        MultipleChoice(),
        FillMaskTask(),
    )
}
"""Name → task."""
