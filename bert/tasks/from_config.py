"""What a checkpoint of the hub, which has no `task.json`, says of its task in its `config.json`."""

from collections.abc import Mapping
from typing import Any

from bert.errors import ConfigError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec

_PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
_TASKS = {name: task for task in TASKS.values() for name in task.architectures}


def spec_from_config(values: Mapping[str, Any], max_tokens: int) -> TaskSpec:
    """Return the task that `architectures`, `id2label` and `problem_type` name; any other encoder gives embeddings.

    Raises ConfigError for labels that break a rule.
    """
    architecture = next(iter(values.get("architectures") or ()), "")
    task = _TASKS.get(architecture, TASKS["similarity"])
    labels: tuple[str, ...] = ()
    if task.needs_labels:
        labels = _labels(values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"})
    problem_type = _PROBLEM_TYPES.get(values.get("problem_type") or "", task.default_problem_type(labels))
    return TaskSpec(
        task.name,
        labels,
        problem_type if task.has_problems else "single_label",
        max_tokens=max_tokens,
        stride=min(128, max_tokens // 4) if task.has_windows else 0,
    )


def _labels(names: Any) -> tuple[str, ...]:
    """Return the labels in the order of their numbers, which must be 0, 1, 2 ..."""
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
        raise ConfigError(f"config.json: id2label must name a label for each number: {names!r}")
    numbers = [str(number) for number in range(len(names))]
    if {str(key) for key in names} != set(numbers):
        raise ConfigError(
            f"config.json: the keys of id2label must be 0, 1, 2 ...: {', '.join(map(str, names))}"
        )
    by_number = {str(key): name for key, name in names.items()}
    return tuple(by_number[number] for number in numbers)
