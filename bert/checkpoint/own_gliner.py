"""Files of a GLiNER that was trained here, as `gliner` loads them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert.bodies.family import Array
from bert.checkpoint.gliner import BODY, TOKENIZER, add_markers
from bert.config import BertConfig
from bert.tasks.spec import LabelPrompt
from bert.tokenizer import Tokenizer

_MARKERS = ("<<ENT>>", "<<SEP>>")
_VALUES = {
    "model_name": "bert-finetune", "name": "bert-finetune", "ent_token": _MARKERS[0], "sep_token": _MARKERS[1],
    "words_splitter_type": "whitespace", "subtoken_pooling": "first",
}  # fmt: skip
"""Values of models that did not begin as a GLiNER."""


def gliner_weights(weights: Mapping[str, Array], config: BertConfig) -> dict[str, Array]:
    """Return weights as GLiNER's files have them, of those under BERT's names."""
    body = {name: tensor for name, tensor in weights.items() if name.startswith("bert.")}
    own = config.family.own_weights(body, "BertModel", asdict(config))
    head = {name: tensor for name, tensor in weights.items() if name not in body}
    return {BODY + name.removeprefix(config.family.prefix): tensor for name, tensor in own.items()} | head


def gliner_values(values: Mapping[str, Any], config: BertConfig, prompt: LabelPrompt) -> dict[str, Any]:
    """Return the content of `gliner_config.json`; `values` are those of the model that training began with, if any."""
    return {
        "model_type": f"gliner_uni_encoder_{'span' if prompt.judges_spans else 'token'}",
        **_VALUES,
        **values,
        "encoder_config": config.to_dict(),
        "vocab_size": config.vocab_size,
        "class_token_index": prompt.label_id,
        "span_mode": prompt.span_mode,
        "hidden_size": prompt.width,
        "max_width": prompt.max_width,
        "max_len": prompt.max_words,
        "num_rnn_layers": prompt.lstm_layers,
        "embed_ent_token": not prompt.reads_label,
    }


def with_markers(tokenizer: Tokenizer) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer of a body with GLiNER's two markers after its pieces, and their ids."""
    content = add_markers(tokenizer.to_json(), _MARKERS, {})
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    return Tokenizer.parse(json.dumps(content).encode(), Path(TOKENIZER)), [added[name] for name in _MARKERS]
