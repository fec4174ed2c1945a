"""The class that fine-tunes each task."""

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.settings import FinetuneSettings
from training.tasks.base import FinetuneTask
from training.tasks.choice import ChoiceFinetuning
from training.tasks.ner import NerFinetuning
from training.tasks.qa import QaFinetuning
from training.tasks.sequence import SequenceFinetuning
from training.tasks.similarity import SimilarityFinetuning

TASKS: dict[str, type[FinetuneTask]] = {
    "classification": SequenceFinetuning,
    "ner": NerFinetuning,
    "qa": QaFinetuning,
    "similarity": SimilarityFinetuning,
    "multiple_choice": ChoiceFinetuning,
}


def make_task(settings: FinetuneSettings, tokenizer: Tokenizer, spec: TaskSpec) -> FinetuneTask:
    """Return the settings' task. Raises ConfigError where it has no such metric."""
    task = TASKS[settings.task](tokenizer, spec)
    if settings.metric is not None and settings.metric not in task.metrics:
        raise ConfigError(
            f"metric is {settings.metric!r}; known for {spec.task} are {', '.join(task.metrics)}"
        )
    return task
