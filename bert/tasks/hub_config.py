"""The task of a hub checkpoint, which has no `task.json`, by its `config.json`: task, labels, and one text or two."""

from collections.abc import Mapping, Sequence
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
UNKNOWN_PAIR = "nothing says whether the classifier reads one text or two: one is taken; --pair takes two"
_OF_TWO_TEXTS = ("entailment", "not_entailment", "contradiction")


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


def reads_pairs(values: Mapping[str, Any], labels: Sequence[str], stated: bool | None = None) -> bool | None:
    """Return what a `config.json` says, or the user (`stated`); None where nobody says anything.

    Raises ConfigError for labels that are those of two texts, where nothing else says so, and for a cross-encoder of
    sentence-transformers whose score would be another.
    """
    ours = values.get("sentence_transformers")
    old = values.get("sbert_ce_default_activation_function")
    is_cross_encoder = ours is not None or old is not None
    if is_cross_encoder:
        _check_activation(ours.get("activation_fn") if isinstance(ours, dict) else old, labels)
    if stated is not None or is_cross_encoder:
        return True if stated is None else stated
    if found := [label for label in labels if label.lower() in _OF_TWO_TEXTS]:
        raise ConfigError(
            f"config.json: the label {found[0]!r} is one of two texts, and nothing says whether the model reads them: "
            "say --pair, or --no-pair for one text"
        )
    return None


def _check_activation(activation: Any, labels: Sequence[str]) -> None:
    name = str(activation or ("Sigmoid" if len(labels) == 1 else "Identity")).rpartition(".")[2]
    if name != "Identity" and len(labels) == 1:
        raise ConfigError(
            f"config.json: the cross-encoder's score goes through {name}, and the service gives the number before it: "
            "set activation_fn to torch.nn.modules.linear.Identity if that, in the same order, will do"
        )
