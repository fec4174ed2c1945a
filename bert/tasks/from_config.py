"""What a checkpoint of the hub, which has no `task.json`, says of its task in its `config.json`."""

from collections.abc import Mapping
from typing import Any

from bert.tasks.spec import TaskSpec

_PROBLEMS = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
_TASKS = {
    "BertForSequenceClassification": "classification",
    "BertForTokenClassification": "ner",
    "BertForQuestionAnswering": "qa",
    "BertForMultipleChoice": "multiple_choice",
    "BertForMaskedLM": "fill_mask",
    "BertForPreTraining": "fill_mask",
}


def spec_from_config(values: Mapping[str, Any], max_tokens: int) -> TaskSpec:
    """Return the task that `architectures`, `id2label` and `problem_type` name; any other encoder gives embeddings."""
    architecture = next(iter(values.get("architectures") or ()), "")
    task = _TASKS.get(architecture, "similarity")
    problem = "single_label"
    labels: tuple[str, ...] = ()
    if task in ("classification", "ner"):
        names = {int(k): str(v) for k, v in (values.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}).items()}
        labels = tuple(names[i] for i in sorted(names))
    if task == "classification":
        default = "regression" if len(labels) == 1 else "single_label"  # transformers' own rule
        problem = _PROBLEMS.get(values.get("problem_type") or "", default)
    stride = min(128, max_tokens // 4) if task in ("ner", "qa") else 0
    return TaskSpec(task, labels, problem, max_tokens=max_tokens, stride=stride)
