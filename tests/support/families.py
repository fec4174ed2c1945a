"""Random checkpoints of BERT's relatives, written by `transformers`, which is also what is compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bert.checkpoint.weights import Checkpoint
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from model_export.reference import Floats, Reference
from model_export.verify.texts import EncodedText
from tests.support.checkpoints import ARCHITECTURES, vocabulary

CLASSES = {
    "distilbert": "DistilBert",
    "ernie": "Ernie",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
    "albert": "Albert",
    "mpnet": "MPNet",
    "modernbert": "ModernBert",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
}
"""`model_type` → beginning of the class names."""
KINDS: dict[str, Any] = {
    "classification": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "multiple_choice": transformers.AutoModelForMultipleChoice,
}
"""Task → class of `transformers` that loads any family."""
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_ROBERTA = {
    **_SHAPE,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 129,
    "pad_token_id": 0,  # the vocabulary's; that of the hub is 1
}
_DEBERTA = {
    **_SHAPE,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "max_relative_positions": 40,
}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": _SHAPE,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "activation": "gelu"},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "ernie": {**_SHAPE, "type_vocab_size": 4, "use_task_id": True, "layer_norm_eps": 1e-5},
    "electra": {**_SHAPE, "embedding_size": 24},
    "albert": {
        **_SHAPE,
        "num_hidden_layers": 4,
        "embedding_size": 24,
        "num_hidden_groups": 2,
        "inner_group_num": 1,
    },
    "mpnet": {**_SHAPE, "layer_norm_eps": 1e-5, "max_position_embeddings": 130},
    # Texts are longer than its windows, and the biases that the hub's files lack are there.
    "modernbert": {
        **_SHAPE,
        "num_hidden_layers": 4,
        "local_attention": 12,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "pad_token_id": 0,
    },
    "deberta": _DEBERTA,
    "deberta-v2": {
        **_DEBERTA,
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "nomic_bert": _SHAPE,
    "gte": {**_SHAPE, "pad_token_id": 0},
}
_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DROPOUT = {
    **dict.fromkeys(SHAPES, _DROPOUT),
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "qa_dropout": 0.0, "seq_classif_dropout": 0.0},
    "electra": {**_DROPOUT, "summary_last_dropout": 0.0},
    "albert": {**_DROPOUT, "classifier_dropout_prob": 0.0},
    "modernbert": {},
}


def relative(model_type: str, spec: TaskSpec, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
    """Return a random model with noise on every parameter: fresh biases are 0, norms 1, and hide what is left out."""
    task = TASKS[spec.task]
    values = {
        "vocab_size": len(vocabulary()),
        "max_position_embeddings": 128,
        "num_labels": task.head_outputs(spec) or 2,
        **SHAPES[model_type],
        **DROPOUT[model_type],
        **changes,
    }
    if task.needs_labels:
        values["id2label"] = dict(enumerate(spec.labels))
        values["label2id"] = {label: number for number, label in enumerate(spec.labels)}
    config = transformers.AutoConfig.for_model(model_type, **values)
    name = CLASSES.get(model_type, "Bert") + ARCHITECTURES[spec.task].removeprefix("Bert")
    model: transformers.PreTrainedModel = getattr(transformers, name)(config).eval()
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.15 if parameter.dim() > 1 else 0.3
            parameter.add_(torch.empty_like(parameter).normal_(0.0, scale, generator=drawn))
    return model


def has_class(model_type: str, task: str) -> bool:
    """Tell whether `transformers` has a class of a family for a task."""
    return hasattr(transformers, CLASSES.get(model_type, "Bert") + ARCHITECTURES[task].removeprefix("Bert"))


def write_relative(
    folder: Path, model_type: str, spec: TaskSpec, **changes: Any
) -> transformers.PreTrainedModel:
    """Write a random model as one of the hub, without a `task.json`; return it."""
    model = relative(model_type, spec, **changes)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
    return model


def their_outputs(model: transformers.PreTrainedModel, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
    """Return scores or hidden states of ids (B, T), or of (B * C, T) for multiple choice; QA's (B, T, 2)."""
    if "MultipleChoice" in type(model).__name__:
        ids, mask, segments = ids[None], mask[None], segments[None]
    more = {"token_type_ids": segments} if getattr(model.config, "type_vocab_size", 1) > 1 else {}
    output = model(input_ids=ids, attention_mask=mask, **more)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    found: Tensor = output.logits if "logits" in output else output.last_hidden_state
    return found


def their_answers(model: torch.nn.Module, spec: TaskSpec, text: EncodedText) -> Floats:
    """Return what a model of transformers answers at the positions of a text that its task reads."""
    ids, segments = (torch.tensor(x)[None].long() for x in (text.encoding.ids, text.encoding.segment_ids))
    with torch.no_grad():
        found = their_outputs(model, ids, torch.ones_like(ids), segments)
    if spec.task == "similarity":
        found = torch.nn.functional.normalize(found[:, 0] if spec.pooling == "cls" else found.mean(dim=1))
    array: Floats = found.reshape(-1, found.shape[-1]).numpy()
    return array[text.positions] if spec.task in ("ner", "qa", "fill_mask") else array


def farthest(first: Sequence[Floats], second: Sequence[Floats]) -> float:
    """Return the largest difference of two models' answers to the same texts."""
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def assert_answers(checkpoint: Checkpoint, theirs: torch.nn.Module) -> None:
    """Fail unless the checkpoint's weights, as they are read for export, answer as a model of transformers."""
    encoding = checkpoint.tokenizer.single(checkpoint.tokenizer.pieces(["Ada lived in a warm London."])[0])
    is_pooled = TASKS[checkpoint.spec.task].head is Head.POOLED
    positions = [0] if is_pooled else list(range(len(encoding)))
    found = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights).outputs(
        encoding.ids, encoding.segment_ids, torch.tensor(positions).numpy()
    )
    ids = torch.tensor(encoding.ids)[None].long()
    with torch.no_grad():
        expected = their_outputs(theirs.eval(), ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert abs(found - expected.numpy().reshape(found.shape)).max() < 1e-5
