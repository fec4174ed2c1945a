"""The table of tasks as `bert` knows them. CONTRIBUTING.md lists the other places of a new task."""

from bert.tasks.classification import ClassificationTask
from bert.tasks.fill_mask import FillMaskTask
from bert.tasks.multiple_choice import MultipleChoice
from bert.tasks.ner import NerTask
from bert.tasks.open_classification.task import OpenClassificationTask
from bert.tasks.open_ner.task import OpenNerTask
from bert.tasks.qa import QaTask
from bert.tasks.task import Task
from bert.tasks.vectors.similarity import SimilarityTask
from bert.tasks.vectors.sparse import SparseTask
from bert.tasks.vectors.token_vectors import TokenVectorsTask

_ALL = (
    ClassificationTask(),
    OpenClassificationTask(),
    NerTask(),
    OpenNerTask(),
    QaTask(),
    SimilarityTask(),
    SparseTask(),
    TokenVectorsTask(),
    MultipleChoice(),
    FillMaskTask(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
"""Name → task."""
