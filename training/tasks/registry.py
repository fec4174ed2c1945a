"""The class that fine-tunes each task."""

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.settings import FinetuneSettings
from training.tasks.base import FinetuneTask
from training.tasks.choice import ChoiceTask
from training.tasks.features import FeatureNerTask
from training.tasks.ner import NerTask
from training.tasks.qa import QaTask
from training.tasks.sequence import SequenceTask
from training.tasks.similarity import SimilarityTask

TASKS: dict[str, type[FinetuneTask]] = {
    "classification": SequenceTask,
    "ner": NerTask,
    "qa": QaTask,
    "similarity": SimilarityTask,
    "multiple_choice": ChoiceTask,
}


def make_task(settings: FinetuneSettings, tokenizer: Tokenizer, spec: TaskSpec) -> FinetuneTask:
    """Return the settings' task. Raises ConfigError where it has no such metric."""
    if settings.features is not None:
        task: FinetuneTask = FeatureNerTask(tokenizer, spec, settings.features)
    else:
        task = TASKS[settings.task](tokenizer, spec)
    if settings.metric is not None and settings.metric not in task.metrics:
        raise ConfigError(
            f"metric is {settings.metric!r}; known for {spec.task} are {', '.join(task.metrics)}"
        )
    return task
