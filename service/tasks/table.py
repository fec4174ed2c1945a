"""The table of served tasks, from which every interface takes them.

A new task is one file in this folder and one line here; CONTRIBUTING.md lists its other places.
"""

from typing import Any

from service.tasks.classification import Classify
from service.tasks.embed import Embed
from service.tasks.fill_mask import FillMask
from service.tasks.multiple_choice import MultipleChoice
from service.tasks.ner import Ner
from service.tasks.qa import Qa
from service.tasks.rerank import Rerank
from service.tasks.similarity import Similarity
from service.tasks.task import ServedTask
from service.tasks.tokenize import Tokenize

TASKS: tuple[ServedTask[Any], ...] = (
    Classify(),
    MultipleChoice(),
    Ner(),
    Similarity(),
    Rerank(),
    Qa(),
    Embed(),
    FillMask(),
    Tokenize(),
)
"""In the order of the document."""
BY_PATH = {task.path: task for task in TASKS}
FIRST = {name: task for task in reversed(TASKS) for name in task.model_tasks}
"""Models' task → the first task that they do."""
BY_ROW = {name: task for task in TASKS if task.by_row for name in task.model_tasks}
"""Models' task → what they do with each text, or each set of texts, by itself."""
