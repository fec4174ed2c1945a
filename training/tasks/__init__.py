"""Fine-tuning of each task: features, loss, and scores on held-out data. `_CLASSES` lists the tasks."""

from pkgutil import resolve_name

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.settings import FinetuneSettings
from training.tasks.base import FinetuneTask

_CLASSES = {
    "classification": "training.tasks.sequence:SequenceFinetuning",
    "ner": "training.tasks.ner:NerFinetuning",
    "open_ner": "training.tasks.open_ner:OpenNerFinetuning",
    "qa": "training.tasks.qa:QaFinetuning",
    "similarity": "training.tasks.similarity:SimilarityFinetuning",
    "sparse": "training.tasks.sparse:SparseFinetuning",
    "multiple_choice": "training.tasks.choice:ChoiceFinetuning",
}


def task_class(task: str) -> type[FinetuneTask]:
    """Return the class that fine-tunes a task; of all tasks' modules only this one's is imported."""
    found: type[FinetuneTask] = resolve_name(_CLASSES[task])
    return found


def make_task(settings: FinetuneSettings, tokenizer: Tokenizer, spec: TaskSpec) -> FinetuneTask:
    """Return the settings' task. Raises ConfigError where it has no such metric."""
    task = task_class(settings.task)(tokenizer, spec)
    if settings.metric is not None and settings.metric not in task.metrics:
        raise ConfigError(
            f"metric is {settings.metric!r}; known for {spec.task} are {', '.join(task.metrics)}"
        )
    return task
