"""Small models with a vector for each token, random: bundles, and folders as Stanford's ColBERT writes them."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.numpy import save_file

from bert.config import BertConfig
from bert.tasks.spec import DenseLayer, TaskSpec, TokenVectors
from tests.support.tiny import tiny_tokenizer, tiny_weights, vocabulary, write_tiny_bundle

WIDTH = 16
"""Numbers of a vector."""
MASK = 4
"""Id of [MASK]."""
HOW = TokenVectors(
    query_length=12,
    document_length=32,
    query_marker=5,
    document_marker=6,
    expansion_id=MASK,
    expansion_length=12,
    attends=False,
    skipped_ids=(vocabulary().index("."), vocabulary().index(",")),
)
SPEC = TaskSpec(
    "token_vectors", token_vectors=HOW, dense=(DenseLayer(WIDTH, "identity"),), max_tokens=HOW.document_length
)
BODY = {
    "model_type": "bert",
    "architectures": ["HF_ColBERT"],
    "vocab_size": len(vocabulary()),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def write_tokens_bundle(folder: Path, name: str = "tokens", *, mean: bool = False) -> None:
    """Write a bundle whose queries are filled up with tokens to which no other attends."""
    write_tiny_bundle(folder, name, replace(SPEC, token_vectors=replace(HOW, mean=mean)), seed=21)


def write_stanford(folder: Path, metadata: object = None, **changed: object) -> None:
    """Write a folder; `metadata` is the content of its `artifact.metadata`, `changed` are other values of its config."""
    folder.mkdir(exist_ok=True)
    config = {**BODY, **changed}
    weights = tiny_weights(BertConfig.from_dict(config), SPEC, 13)
    del weights["dense.0.bias"]
    weights["linear.weight"] = weights.pop("dense.0.weight")
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text(tiny_tokenizer().to_json(), "utf-8")
    (folder / "artifact.metadata").write_text(
        json.dumps({"query_token_id": "a", "doc_token_id": "the"} if metadata is None else metadata), "utf-8"
    )
