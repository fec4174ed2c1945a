"""Random models with a vector for each token, made, saved and asked by sentence-transformers or PyLate, in their Python.

    PYTHON tests/support/token_vector_models.py FOLDER < JSON

The JSON has `texts`, and `kinds` by name: `body`, `format` (own, pylate or stanford), and what that format says. Each kind
becomes FOLDER/NAME with the model and `expected.json`: the vectors of the texts on both sides, and their scores.
"""

import itertools
import json
import string
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

LONGEST = 384
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
}  # fmt: skip
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def save_body(folder: Path, body: str, markers: list[str], texts: list[str]) -> None:
    """Save a random body with noise on every parameter, and a tokenizer of its usual kind with added markers."""
    if body == "bert":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = [*SPECIAL, "[unused0]", "[unused1]"]
        trainer: Any = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator([*texts, *string.punctuation], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = ("pad", "cls", "sep", "unk", "mask")
    known = {f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=LONGEST, **known)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=True) for marker in markers])
    ids = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    if body == "bert":
        model: Any = BertModel(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **SIZES))
    else:
        config = ModernBertConfig(vocab_size=len(tokenizer), local_attention=16, **ids, **SIZES)
        model = ModernBertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_own(folder: Path, kind: dict[str, Any]) -> Any:
    """Save a MultiVectorEncoder over the body in a folder, and return it as it is read again."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    widths, tokens = [32, *kind.get("widths", [16])], {"module_input_name": "token_embeddings"}
    layers = itertools.pairwise(widths)
    dense = [
        Dense(i, o, bias=bool(n), activation_function=torch.nn.Tanh() if n else torch.nn.Identity(), **tokens)
        for n, (i, o) in enumerate(layers)
    ]
    norm = [Normalize(**tokens)] if kind.get("normalize", True) else []
    transformer = Transformer(str(folder), **kind.get("transformer", {}))
    mask = MultiVectorMask(kind.get("skiplist_words"))
    more = {"prompts": kind.get("prompts"), "similarity_fn_name": kind.get("similarity_fn_name")}
    MultiVectorEncoder(modules=[transformer, *dense, mask, *norm], **more).save_pretrained(str(folder))
    return MultiVectorEncoder(str(folder), device="cpu")


def make_stanford(folder: Path, kind: dict[str, Any]) -> None:
    """Turn the body in a folder into an HF_ColBERT."""
    file = folder / "model.safetensors"
    weights = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**weights, "linear.weight": torch.randn(16, 32) * 0.3}, file)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}), "utf-8")
    if (metadata := kind.get("metadata")) is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata), "utf-8")


def make_pylate(folder: Path, kind: dict[str, Any]) -> Any:
    """Save PyLate's model over the body in a folder, and return it as it is read again."""
    from pylate.models import ColBERT

    if kind["format"] == "pylate":
        ColBERT(str(folder), embedding_size=16, device="cpu", **kind.get("pylate", {})).save(str(folder))
    return ColBERT(str(folder), device="cpu")


def answers(model: Any, texts: list[str]) -> dict[str, Any]:
    """Return the vectors of texts as queries and as documents, and each document's score for each query."""
    if type(model).__name__ == "MultiVectorEncoder":
        sides = [model.encode_query(texts), model.encode_document(texts)]
        scores = model.similarity(*sides)
    else:
        from pylate.scores import colbert_scores

        sides = [model.encode(texts, is_query=is_query, batch_size=1) for is_query in (True, False)]
        queries, documents = ([torch.as_tensor(each) for each in side] for side in sides)
        scores = torch.stack(
            [torch.stack([colbert_scores(q[None], d[None])[0, 0] for d in documents]) for q in queries]
        )
    query, document = ([each.tolist() for each in side] for side in sides)
    return {"query": query, "document": document, "scores": scores.tolist()}


def main() -> None:
    """Make all kinds, and write what they answer."""
    asked, root = json.load(sys.stdin), Path(sys.argv[1])
    torch.set_num_threads(1)
    for number, (name, kind) in enumerate(asked["kinds"].items()):
        folder = root / name
        folder.mkdir(parents=True)
        torch.manual_seed(number)
        save_body(folder, kind["body"], kind.get("markers", []), asked["texts"])
        if kind["format"] == "stanford":
            make_stanford(folder, kind)
        if kind["format"] == "pylate" or asked.get("by") == "pylate":
            model = make_pylate(folder, kind)
        elif kind["format"] == "stanford":
            from sentence_transformers import MultiVectorEncoder

            model = MultiVectorEncoder(str(folder), device="cpu")
        else:
            model = make_own(folder, kind)
        (folder / "expected.json").write_text(json.dumps(answers(model, asked["texts"])), "utf-8")


main()
