"""Random SparseEncoders made, saved and asked by sentence-transformers, in the Python of an environment that has it.

    BERT_SENTENCE_TRANSFORMERS_PYTHON tests/support/sparse_models.py FOLDER < JSON

The JSON has `texts`, the `vocabulary`, and `kinds` by name, which begins with the family. Each becomes FOLDER/NAME with the
model and `expected.json`: indices and weights of each text, and with a router those of each as a query.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import (
    Router,
    SparseStaticEmbedding,
    SpladePooling,
    Transformer,
)
from tokenizers.implementations import BertWordPieceTokenizer  # type: ignore[attr-defined]

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONFIGS: dict[str, Any] = {
    "bert": transformers.BertConfig(**SIZES, max_position_embeddings=128),
    "roberta": transformers.RobertaConfig(
        **SIZES, max_position_embeddings=129, type_vocab_size=1, pad_token_id=0
    ),
    "distilbert": transformers.DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=128
    ),
    "modernbert": transformers.ModernBertConfig(
        **SIZES,
        local_attention=16,
        max_position_embeddings=128,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
    ),
}


def body(family: str, vocabulary: list[str], folder: Path) -> None:
    """Write a random masked language model, with noise on every parameter, and its tokenizer."""
    config = CONFIGS[family]
    config.vocab_size = len(vocabulary)
    torch.manual_seed(len(family))
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    backend = BertWordPieceTokenizer({piece: n for n, piece in enumerate(vocabulary)}, lowercase=True)
    names = ("pad", "unk", "cls", "sep", "mask")
    known = {f"{name}_token": piece for name, piece in zip(names, vocabulary, strict=False)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer, model_max_length=128, **known
    ).save_pretrained(folder)


def make(folder: Path, name: str, kind: dict[str, Any], vocabulary: list[str]) -> SparseEncoder:
    """Save a SparseEncoder."""
    start = folder.with_name(f"{name}-body")
    body(name.partition("-")[0], vocabulary, start)
    transformer = Transformer(str(start), transformer_task="fill-mask")
    activation = kind.get("activation_function", "relu")
    modules = [transformer, SpladePooling("max", activation_function=activation)]
    if "router" in kind:
        torch.manual_seed(3)
        weight = torch.rand(len(vocabulary)) * 9
        if kind["router"] == "idf":
            (start / "idf.json").write_text(json.dumps(dict(zip(vocabulary, weight.tolist(), strict=True))))
            queries = SparseStaticEmbedding.from_json(
                str(start / "idf.json"), transformer.tokenizer, frozen=True
            )
        else:
            queries = SparseStaticEmbedding(transformer.tokenizer, weight, frozen=True)
        modules = [Router.for_query_document([queries], modules)]
    prompts = {each: kind[each] for each in ("prompts", "default_prompt_name") if each in kind}
    model = SparseEncoder(modules=modules, similarity_fn_name="dot", device="cpu", **prompts)
    model.save_pretrained(str(folder))
    return SparseEncoder(str(folder), device="cpu")


def shown(vectors: Any) -> list[list[list[float]]]:
    """Return indices and weights of each vector above 0."""
    rows = vectors.to_dense() if vectors.is_sparse else vectors
    return [[row.nonzero().flatten().tolist(), row[row != 0].tolist()] for row in rows]


def main() -> None:
    """Make all kinds, and write what they answer."""
    asked, root = json.load(sys.stdin), Path(sys.argv[1])
    for name, kind in asked["kinds"].items():
        model = make(root / name, name, kind, asked["vocabulary"])
        found = shown(model.encode(asked["texts"], batch_size=7))
        if "router" in kind:
            found += shown(model.encode_query(asked["texts"], batch_size=7))
        (root / name / "expected.json").write_text(json.dumps(found), "utf-8")


main()
