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
from bert.tasks.open_ner.inputs import Words, prompt_ids, windows, word_bounds
from bert.tasks.open_ner.task import OpenNerTask
from bert.tasks.spec import SPAN_MODES, LabelPrompt, TaskSpec
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


def find(
    checkpoint: Checkpoint, session: GraphSession, texts: Sequence[str], labels: Sequence[str], how: Choosing
) -> list[list[Entity]]:
    """Return the entities of each text; all texts and windows are one batch."""
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    assert spec.label_prompt is not None

    def ids(words: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array(each, np.int32) for each in tokenizer.ids(words)]

    before = prompt_ids(ids(labels), spec.label_prompt)
    bounds = [word_bounds(text) for text in texts]
    words = [Words.of(at, ids([text[a:b] for a, b in at])) for text, at in zip(texts, bounds, strict=True)]
    cut = [windows(each, before, tokenizer, spec) if each.ids else [] for each in words]
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
