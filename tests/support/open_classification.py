"""Scores of labels as the service finds them, without the service; and small GLiClasses, random, without `gliclass`."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file

from bert.checkpoint.weights import Checkpoint
from bert.config import BertConfig
from bert.tasks.open_classification.task import encode, prompt_ids
from bert.tasks.spec import ClassPrompt, TaskSpec
from model_export.verify.precision import GraphSession
from model_export.verify.texts import make_text
from tests.support.tiny import tiny_tokenizer, tiny_weights, vocabulary

PIECES = len(vocabulary()) + 2
"""Pieces of the vocabulary below, its markers among them."""
PROMPT = ClassPrompt(PIECES - 2, PIECES - 1, width=24)
SPEC = TaskSpec("open_classification", class_prompt=PROMPT, max_tokens=64)
BODY = {
    "model_type": "bert",
    "vocab_size": PIECES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def tokenizer_json() -> str:
    """Return the tokenizer of tests' tiny bundles with GLiClass's two markers, the last of its PIECES."""
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_json())
    backend.add_special_tokens(["<<LABEL>>", "<<SEP>>"])
    return str(backend.to_str())


def write_gliclass(folder: Path, **changed: object) -> None:
    """Write a random GLiClass over a BERT as `gliclass` saves one; `changed` are other values of its config."""
    folder.mkdir(exist_ok=True)
    prompt = ClassPrompt(PIECES - 2, PIECES - 1, width=32, normalize=bool(changed.get("normalize_features")))
    spec = TaskSpec("open_classification", class_prompt=prompt, max_tokens=64)
    weights = {
        f"model.{name.replace('bert.', 'encoder_model.', 1)}": value
        for name, value in tiny_weights(BertConfig.from_dict(BODY), spec, 13).items()
    }
    if changed.get("use_segment_embeddings"):
        weights["model.segment_embeddings.weight"] = np.ones((3, 32), np.float32)
    save_file(weights, folder / "model.safetensors")
    values = {
        "model_type": "GLiClass",
        "architecture_type": "uni-encoder",
        "encoder_config": BODY,
        "hidden_size": 32,
        "vocab_size": PIECES,
        "class_token_index": PIECES - 2,
        "text_token_index": PIECES - 1,
        "pooling_strategy": "first",
        "class_token_pooling": "first",
        "prompt_first": True,
        **changed,
    }
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")


def logits(
    checkpoint: Checkpoint, session: GraphSession, texts: Sequence[str], labels: Sequence[str]
) -> list[NDArray[np.float32]]:
    """Return the logits (C, 1) of each text; all texts are one batch."""
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    assert spec.class_prompt is not None
    before = prompt_ids([np.array(each, np.int32) for each in tokenizer.ids(labels)], spec.class_prompt)
    pieces = tokenizer.pieces(texts, only_ids=True)
    return session.run([make_text(encode(each, before, tokenizer, spec), spec.task) for each in pieces])
