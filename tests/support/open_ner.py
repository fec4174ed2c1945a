"""Entities of labels as the service finds them, without the service; and small GLiNERs, random, without `gliner`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from bert.checkpoint.weights import Checkpoint
from bert.config import BertConfig
from bert.tasks.ner import Entity
from bert.tasks.open_ner.decode import Choosing, decode
from bert.tasks.open_ner.inputs import Words, label_input, prompt_ids, windows, word_bounds
from bert.tasks.open_ner.task import OpenNerTask
from bert.tasks.spec import SPAN_MODES, DenseLayer, LabelPrompt, TaskSpec
from model_export.verify.precision import GraphSession
from model_export.verify.texts import make_text
from tests.support.tiny import tiny_tokenizer, tiny_weights, vocabulary, write_tiny_bundle

PIECES = len(vocabulary()) + 2
"""Pieces of the vocabulary below, its markers among them."""


def tokenizer_json() -> str:
    """Return the tokenizer of tests' tiny bundles with GLiNER's two markers, the last of its PIECES."""
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().to_json())
    backend.add_special_tokens(["<<ENT>>", "<<SEP>>"])
    return str(backend.to_str())


SPEC = {
    mode: TaskSpec(
        "open_ner",
        label_prompt=LabelPrompt(PIECES - 2, PIECES - 1, mode, width=24, max_width=4, max_words=30),
        max_tokens=64,
    )
    for mode in SPAN_MODES
}
"""Span mode → what a tiny model of it says of itself."""


def write_wide_bundle(folder: Path, name: str) -> None:
    """Write a random bundle that judges spans and has room for many labels; it finds some in most texts."""
    spec = replace(SPEC["markerV0"], max_tokens=1000)
    write_tiny_bundle(
        folder, name, spec, 5, positions=1000, vocab_size=PIECES, tokenizer_json=tokenizer_json()
    )


BODY = {
    "model_type": "bert",
    "vocab_size": PIECES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def write_gliner(
    folder: Path, mode: str = "markerV0", *, has_pickle: bool = False, **changed: object
) -> None:
    """Write a random GLiNER over a BERT as `gliner` saves one; `changed` are other values of its config."""
    folder.mkdir(exist_ok=True)
    config = BertConfig.from_dict(BODY)
    prompt = LabelPrompt(PIECES - 2, PIECES - 1, mode, width=32)
    weights = {
        name.replace("bert.", "token_rep_layer.bert_layer.model.", 1): value
        for name, value in tiny_weights(config, TaskSpec("open_ner", label_prompt=prompt), 13).items()
    }
    if has_pickle:
        torch.save(
            {name: torch.from_numpy(value) for name, value in weights.items()}, folder / "pytorch_model.bin"
        )
    else:
        save_file(weights, folder / "model.safetensors")
    values = {
        "model_type": None,
        "model_name": "org/body",
        "encoder_config": BODY,
        "hidden_size": 32,
        "span_mode": mode,
        "max_width": 12,
        "vocab_size": PIECES,
        "class_token_index": PIECES - 2,
        "num_rnn_layers": 1,
        **changed,
    }
    (folder / "gliner_config.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")


LABELS_BODY = {**BODY, "vocab_size": len(vocabulary()), "hidden_size": 16, "max_position_embeddings": 32}


def write_bi_gliner(folder: Path, mode: str = "markerV0", **changed: object) -> None:
    """Write a random GLiNER whose labels have an encoder of their own, as `gliner` saves one."""
    folder.mkdir(exist_ok=True)
    labels_folder = folder / "labels_tokenizer"
    labels_folder.mkdir()
    width = 24
    prompt = LabelPrompt(0, 0, mode, width=width, has_encoder=True)
    parts = [(width, "identity", "token_rep_layer.labels_projection")]
    if prompt.judges_spans:
        parts += [(4 * width, "relu", "prompt_rep_layer.0"), (width, "identity", "prompt_rep_layer.3")]
    layers = tuple(DenseLayer(out, activation) for out, activation, _ in parts)
    own, of_labels = (
        BertConfig.from_dict({**BODY, "vocab_size": len(vocabulary())}),
        BertConfig.from_dict(LABELS_BODY),
    )
    texts = tiny_weights(own, TaskSpec("open_ner", label_prompt=prompt), 13)
    labels = tiny_weights(of_labels, TaskSpec("similarity", dense=layers), 14)
    weights = {name.replace("bert.", "token_rep_layer.bert_layer.model.", 1): x for name, x in texts.items()}
    for name, x in labels.items():
        number = int(name.split(".")[1]) if name.startswith("dense.") else 0
        name = name.replace(f"dense.{number}.", f"{parts[number][2]}.", 1)
        weights[name.replace("bert.", "token_rep_layer.labels_encoder.model.", 1)] = x
    save_file(weights, folder / "model.safetensors")
    values = {
        "model_type": f"gliner_bi_encoder_{'span' if prompt.judges_spans else 'token'}",
        "model_name": "org/body",
        "labels_encoder": "org/labels-body",
        "encoder_config": {**BODY, "vocab_size": len(vocabulary())},
        "labels_encoder_config": LABELS_BODY,
        "hidden_size": width,
        "span_mode": mode,
        "max_width": 4,
        "vocab_size": -1,
        "class_token_index": -1,
        "num_rnn_layers": 1,
        **changed,
    }
    (folder / "gliner_config.json").write_text(json.dumps(values), encoding="utf-8")
    for each in (folder, labels_folder):
        (each / "tokenizer.json").write_text(tiny_tokenizer().to_json(), encoding="utf-8")


def vectors_of(encoder: Checkpoint, session: GraphSession, labels: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors (C, D) of labels by their own encoder, each read by itself."""
    pieces = encoder.tokenizer.pieces(labels)
    inputs = [label_input(each, encoder.tokenizer, encoder.spec.max_tokens) for each in pieces]
    return np.concatenate(session.alone([make_text(each, encoder.spec.task) for each in inputs]))


def find(
    checkpoint: Checkpoint,
    session: GraphSession,
    texts: Sequence[str],
    labels: Sequence[str],
    how: Choosing,
    of_labels: GraphSession | None = None,
) -> list[list[Entity]]:
    """Return the entities of each text; all texts and windows are one batch.

    `of_labels` is the graph of the labels' encoder, if they have one.
    """
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    assert spec.label_prompt is not None

    def ids(words: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array(each, np.int32) for each in tokenizer.ids(words)]

    before = prompt_ids(ids(labels), spec.label_prompt)
    bounds = [word_bounds(text) for text in texts]
    words = [Words.of(at, ids([text[a:b] for a, b in at])) for text, at in zip(texts, bounds, strict=True)]
    cut = [windows(each, before, tokenizer, spec) if each.ids else [] for each in words]
    if checkpoint.labels is not None and of_labels is not None:
        vectors = vectors_of(checkpoint.labels, of_labels, labels)
        for each in cut:
            for window in each:
                window.encoding.label_vectors = vectors
    outputs = iter(session.run([make_text(window.encoding, spec.task) for each in cut for window in each]))
    return [
        decode(
            text,
            own.bounds,
            labels,
            runs,
            [OpenNerTask().shorten(next(outputs)) for _ in runs],
            spec.label_prompt,
            how,
        )
        for text, own, runs in zip(texts, words, cut, strict=True)
    ]
