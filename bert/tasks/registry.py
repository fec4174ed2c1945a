"""The table of tasks. A new task is one file in this folder and one line here."""

from bert.errors import BundleError
from bert.manifest import Manifest
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


def check_output(manifest: Manifest, name: str, width: object) -> None:
    """Raise BundleError unless a graph's output has the name and the width that task and labels ask for.

    `width` is the last dimension of its shape; one that is no number is that of a graph of any width.
    """
    spec = manifest.task
    wanted, numbers = TASKS[spec.task].output(spec, manifest.hidden_size, manifest.vocab_size)
    if name != wanted or (isinstance(width, int) and width != numbers):
        labels = f" with {len(spec.labels)} labels" if spec.labels else ""
        raise BundleError(
            f"the graph gives {name} of width {width}; a {spec.task} model{labels} gives {wanted} of "
            f"width {numbers}: manifest and graph do not belong together"
        )
