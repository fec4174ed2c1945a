"""Tiny random checkpoints, written by `transformers` itself, which is also what their answers are compared with."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.encoding import MASK_WORD, Encoding
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from model_export.reference import Floats
from model_export.verify.texts import EncodedText, make_text, shipped_texts

SPECS = {
    "classification": TaskSpec("classification", ("bad", "good", "neither"), max_tokens=128),
    "pair": TaskSpec("classification", ("no", "yes"), pair=True, max_tokens=128),
    "multi_label": TaskSpec("classification", ("a", "b", "c"), problem_type="multi_label", max_tokens=128),
    "regression": TaskSpec("classification", ("score",), problem_type="regression", max_tokens=128),
    "ner": TaskSpec("ner", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_tokens=128, stride=32),
    "qa": TaskSpec("qa", max_tokens=128, stride=32, allows_no_answer=True),
    "multiple_choice": TaskSpec("multiple_choice", max_tokens=128),
    "similarity": TaskSpec("similarity", max_tokens=128),
    "cls": TaskSpec("similarity", pooling="cls", max_tokens=128),
    "fill_mask": TaskSpec("fill_mask", max_tokens=128),
    "sparse": TaskSpec("sparse", max_tokens=128),
}
ARCHITECTURES = {
    "classification": "BertForSequenceClassification",
    "ner": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
    "similarity": "BertModel",
    "fill_mask": "BertForMaskedLM",
    "sparse": "BertForMaskedLM",
}


@cache
def vocabulary() -> list[str]:
    """Return BERT's special pieces, letters, and the words of the shipped texts."""
    content = json.loads(resources.files("model_export.verify").joinpath("texts.json").read_text("utf-8"))
    words = {word.strip(".,;:!?()").lower() for text in content["texts"] for word in text.split()}
    letters = [chr(code) for code in range(33, 127)]
    pieces = [*letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters) - {""})]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]


def hf_model(spec: TaskSpec, **changes: Any) -> transformers.PreTrainedModel:
    """Return a random model with weights large enough for its layers to matter."""
    values: dict[str, Any] = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "initializer_range": 0.15,
        "num_labels": TASKS[spec.task].head_outputs(spec) or 2,
    }
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**values, **changes})
    model = getattr(transformers, ARCHITECTURES[spec.task])(config).eval()
    for name, parameter in model.named_parameters():  # biases begin as 0, and norms as 1
        if name.endswith("bias") or "LayerNorm" in name:
            torch.nn.init.normal_(parameter, mean=float("LayerNorm.weight" in name), std=0.1)
    return model


def write_checkpoint(folder: Path, spec: TaskSpec, **changes: Any) -> transformers.PreTrainedModel:
    """Write a random model with vocabulary and task; return it."""
    model = hf_model(spec, **changes)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
    spec.write(folder)
    return model


def checkpoint_and_texts(folder: Path) -> tuple[Checkpoint, list[EncodedText]]:
    """Read it back as the exporter does, with the shipped texts."""
    checkpoint = read_checkpoint(folder)
    return checkpoint, shipped_texts(checkpoint.tokenizer, checkpoint.spec)


def hf_outputs(model: transformers.PreTrainedModel, spec: TaskSpec, text: EncodedText) -> Floats:
    """Return what `transformers` answers: (P, K), or (P, V), (1, V), (1, H) for masks, sparse and dense vectors."""
    ids, segments = (torch.tensor(x)[None].long() for x in (text.encoding.ids, text.encoding.segment_ids))
    if spec.task == "multiple_choice":
        ids, segments = ids[None], segments[None]
    with torch.no_grad():
        output = model(input_ids=ids, token_type_ids=segments, attention_mask=torch.ones_like(ids))
    if spec.task == "similarity":
        states = output.last_hidden_state
        pooled = states[:, 0] if spec.pooling == "cls" else states.mean(dim=1)
        found = torch.nn.functional.normalize(pooled)
    elif spec.task == "qa":
        found = torch.stack([output.start_logits, output.end_logits], dim=-1)[0]
    else:
        found = output.logits.reshape(-1, output.logits.shape[-1])
    if spec.task == "sparse":
        found = found.amax(dim=0, keepdim=True).relu()
    array: Floats = found.numpy()
    return array[text.positions] if spec.task in ("ner", "fill_mask") else array


def random_text(spec: TaskSpec, tokens: int, seed: int = 0) -> EncodedText:
    """Return a text of random pieces, of exactly so many tokens."""
    ids = np.random.default_rng(seed).integers(5, len(vocabulary()), tokens).astype(np.int32)
    plain = np.arange(tokens, dtype=np.int32)
    words = np.where((plain == 0) | (plain == tokens - 1), -1, plain).astype(np.int32)
    if spec.task == "fill_mask":
        words[1] = MASK_WORD
    zeros = np.zeros(tokens, np.int32)
    return make_text(Encoding(ids, zeros, np.zeros((tokens, 2), np.int32), words, zeros), spec.task)


def dev_file(folder: Path, texts: int = 12) -> Path:
    """Write labelled texts of the classification of SPECS."""
    file = folder / "dev.tsv"
    rows = [f"the soup was cold {n}\t{n % 3}" for n in range(texts)]
    file.write_text("\n".join(["sentence\tlabel", *rows]), encoding="utf-8")
    return file
