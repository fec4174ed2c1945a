"""The task of a hub checkpoint, which has no `task.json`, by its `config.json` and its tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert.errors import ConfigError
from bert.families import family_of
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.tags import OUTSIDE, TagScheme
from bert.tasks.task import Head, Task
from bert.tasks.zero_shot import is_of_inference

_PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
_TASKS = {name: task for task in TASKS.values() for name in task.architectures}
_POOLER = "bert.pooler.dense.weight"
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
UNKNOWN_PAIR = (
    "nothing says whether the classifier reads one text or two: requests may have either, and one is verified; "
    "bert-export --pair or --no-pair allows one kind"
)
UNKNOWN_SCORE = (
    "nothing says what the one number is: its sigmoid is taken, as by pipelines of transformers; "
    "problem_type regression in config.json gives the number itself"
)
INFERENCE_PAIR = "the labels are those of natural language inference: two texts are read; --no-pair reads one"
_NO_OUTSIDE = "no label is O: every word belongs to an entity"


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Facts about a hub checkpoint that say what it is for."""

    values: Mapping[str, Any]
    """Content of `config.json`, in BERT's words."""
    shapes: Mapping[str, tuple[int, ...]]
    """Tensor name → shape."""
    settings: Mapping[str, Any]
    """Content of `config_sentence_transformers.json`."""
    is_embedder: bool
    """True for a checkpoint with the `modules.json` of an embedding model."""
    max_tokens: int
    """Length that the model and its tokenizer allow."""

    @property
    def architecture(self) -> str:
        """Name of the class in `transformers`, "" where none is named."""
        return str(next(iter(self.values.get("architectures") or ()), ""))

    @property
    def vocabulary_head(self) -> str:
        """Name of a tensor that a masked language model has."""
        return f"{family_of(self.values).vocabulary_head}.weight"

    @property
    def own_architecture(self) -> str:
        """Name of the architecture as `config.json` has it."""
        return family_of(self.values).own_class(self.architecture)


def find_task(files: HubFiles, *, embeds: bool) -> Task:
    """Return the task that `modules.json`, the class or, without one, the tensors tell.

    `embeds` is True where the user asks for embeddings. Raises ConfigError where they do not tell.
    """
    name = files.architecture
    if files.is_embedder:
        return TASKS["similarity"]
    if name in _TASKS and not (embeds and _lacks_vocabulary_head(files, _TASKS[name])):
        if _lacks_vocabulary_head(files, _TASKS[name]):
            head = family_of(files.values).discriminator
            detects = " (it was trained to find replaced pieces, and to fill no masks)"
            raise ConfigError(
                f"the checkpoint has no tensor {files.vocabulary_head!r}, which a {_TASKS[name].name} model needs, though "
                f"architectures is {files.own_architecture!r}{detects if f'{head}.dense.weight' in files.shapes else ''}: "
                "say --pooling mean, or another, to export its embeddings"
            )
        return _TASKS[name]
    if embeds:
        return TASKS["similarity"]
    heads = {task.head_name for task in TASKS.values()}
    found = sorted(head for head in heads if f"{head}.weight" in files.shapes)
    if name and found:
        raise ConfigError(
            f"config.json: architectures is {files.own_architecture!r}, which is not known, and the weights have a head "
            f"{found[0]!r}: name the class that it is for, one of {', '.join(_TASKS)}, or say --pooling mean for embeddings"
        )
    return TASKS["similarity"] if name else _task_of_tensors(files, found)


def _lacks_vocabulary_head(files: HubFiles, task: Task) -> bool:
    return task.head is Head.VOCABULARY and files.vocabulary_head not in files.shapes


def _task_of_tensors(files: HubFiles, heads: Sequence[str]) -> Task:
    """Return the task of a checkpoint that names no class. Raises ConfigError where two are possible."""
    has_one_head = family_of(files.values).body.has_one_head
    if files.vocabulary_head in files.shapes and not (has_one_head and "classifier" in heads):
        return TASKS["fill_mask"]
    if "qa_outputs" in heads:
        return TASKS["qa"]
    if "classifier" not in heads:
        return TASKS["similarity"]
    names = files.values.get("id2label")
    labels = [str(name) for name in names.values()] if isinstance(names, Mapping) else []
    has_pooler = has_one_head or _POOLER in files.shapes
    if not has_pooler or any(label in OUTSIDE for label in labels):
        return TASKS["ner"]
    if files.shapes["classifier.weight"][0] > 1:
        return TASKS["classification"]
    raise ConfigError(
        "config.json names no architectures, and a head of one number may be a classifier's or that of multiple choice: "
        "set architectures to the name of its class"
    )


def find_labels(files: HubFiles, task: Task, stated: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the labels, LABEL_0 and so on where none are named; none for a task without. Raises ConfigError."""
    if not task.needs_labels:
        return ()
    shape = files.shapes.get(f"{task.head_name}.weight")
    if stated:
        if shape and shape[0] != len(stated):
            raise ConfigError(f"{len(stated)} labels were given, and the head has {shape[0]} outputs")
        return tuple(stated)
    if names := files.values.get("id2label"):
        return _labels(names)
    count = shape[0] if shape else files.values.get("num_labels", files.values.get("_num_labels"))
    return tuple(f"LABEL_{number}" for number in range(count if isinstance(count, int) else 2))


def spec_from_config(
    files: HubFiles,
    *,
    embeds: bool,
    labels: Sequence[str] | None,
    pair: bool | None,
    task: str | None = None,
) -> tuple[TaskSpec, list[str]]:
    """Return the task, and remarks on what nothing says. `labels`, `pair` and `task` are what the user says.

    Raises ConfigError for what breaks a rule.
    """
    found = find_task(files, embeds=embeds) if task is None or files.is_embedder else TASKS[task]
    return _spec_of(files, found, labels, pair)


def _spec_of(
    files: HubFiles, task: Task, labels: Sequence[str] | None, pair: bool | None
) -> tuple[TaskSpec, list[str]]:
    named = find_labels(files, task, labels)
    problem_type, activation = _problem(files, task, len(named))
    spec = TaskSpec(
        task.name,
        named,
        problem_type,
        activation,
        pair=_pair(files, task, named) if pair is None else pair and task.may_read_pairs,
        max_tokens=files.max_tokens,
        stride=task.usual_stride(files.max_tokens),
    )
    own = files.values.get("id2label")
    overrules = labels and isinstance(own, Mapping) and list(own.values()) != list(labels)
    remarks = (
        [f"labels are {own!r} by config.json; {', '.join(named)} are taken, as was asked"]
        if overrules
        else []
    )
    return spec, remarks + _remarks(files, task, spec, pair)


def _remarks(files: HubFiles, task: Task, spec: TaskSpec, pair: bool | None) -> list[str]:
    remarks = []
    if files.is_embedder and files.architecture in _TASKS:
        remarks.append(
            f"architectures is {files.own_architecture!r}, and modules.json makes embeddings: these are taken"
        )
    if not files.architecture:
        remarks.append(f"config.json names no architectures: by its tensors it is taken for {task.name}")
    if task.has_problems and spec.activation and not files.values.get("problem_type"):
        remarks += [] if _is_cross_encoder(files) else [UNKNOWN_SCORE]
    if task.may_read_pairs and pair is None and not _is_cross_encoder(files):
        remarks.append(INFERENCE_PAIR if spec.pair else UNKNOWN_PAIR)
    if task.has_tags and not TagScheme.of(spec.labels).has_outside:
        remarks.append(_NO_OUTSIDE)
    return remarks


def _labels(names: Any) -> tuple[str, ...]:
    """Return the labels in the order of their numbers, which must be 0, 1, 2 ..."""
    if not isinstance(names, Mapping) or not all(
        isinstance(name, str | int | float) and not isinstance(name, bool) for name in names.values()
    ):
        raise ConfigError(f"config.json: id2label must name a label for each number: {names!r}")
    numbers = [str(number) for number in range(len(names))]
    if {str(key) for key in names} != set(numbers):
        raise ConfigError(
            f"config.json: the keys of id2label must be 0, 1, 2 ...: {', '.join(map(str, names))}"
        )
    by_number = {str(key): str(name) for key, name in names.items()}
    return tuple(by_number[number] for number in numbers)


def _problem(files: HubFiles, task: Task, labels: int) -> tuple[str, str]:
    """Return `problem_type` and `activation`. Raises ConfigError for one that is not known."""
    if not task.has_problems:
        return "single_label", ""
    named = files.values.get("problem_type")
    if named is not None and named not in list(_PROBLEM_TYPES):  # a list, as what is named may have no hash
        raise ConfigError(
            f"config.json: problem_type is {named!r}; known are {', '.join(_PROBLEM_TYPES)}, and null"
        )
    stated = _PROBLEM_TYPES[named] if named else ""
    activation = _activation(files)
    if labels > 1:
        # Where many numbers go through nothing, their softmax says the same in numbers that can be read.
        return stated or "single_label", "sigmoid" if activation == "sigmoid" else ""
    if stated == "multi_label":
        return stated, activation
    is_number = stated == "regression" and not _is_cross_encoder(files)
    activation = activation or ("identity" if is_number else "sigmoid")
    return "regression", "sigmoid" if activation == "sigmoid" else ""


def _is_cross_encoder(files: HubFiles) -> bool:
    return (
        files.settings.get("model_type") == "CrossEncoder"
        or files.values.get("sentence_transformers") is not None
        or files.values.get("sbert_ce_default_activation_function") is not None
    )


def _activation(files: HubFiles) -> str:
    """Return the activation that the files name, "" where they name none. Nothing is imported by its name."""
    ours = files.values.get("sentence_transformers")
    named = (
        files.settings.get("activation_fn") if files.settings.get("model_type") == "CrossEncoder" else None,
        ours.get("activation_fn") if isinstance(ours, Mapping) else None,
        files.values.get("sbert_ce_default_activation_function"),
    )
    path = next((name for name in named if name), None)
    if path is None:
        return ""
    name = str(path).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"the cross-encoder's score goes through {name}, which is not known; known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _pair(files: HubFiles, task: Task, labels: Sequence[str]) -> bool | None:
    """Tell whether two texts are read: cross-encoders and natural language inference do. None: nothing says."""
    if not task.may_read_pairs:
        return False
    reads_pairs = _is_cross_encoder(files) or any(map(is_of_inference, labels))
    return True if reads_pairs else None
