"""Random GLiNERs made, saved and asked by `gliner` itself, in the Python of an environment that has it.

    BERT_GLINER_PYTHON tests/support/gliner_models.py FOLDER < JSON

The JSON has `texts`, `label_sets` and `kinds`, the fields of a config by name. Each kind becomes FOLDER/NAME with the model
and `expected.json`: for every set of labels and way of decoding the entities of each text.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gliner import GLiNER
from gliner.config import (
    BiEncoderSpanConfig,
    BiEncoderTokenConfig,
    UniEncoderSpanConfig,
    UniEncoderTokenConfig,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BODIES: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "max_position_embeddings": 512},
    "deberta-v2": {
        **SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
        "max_position_embeddings": 512, "position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm",
        "type_vocab_size": 0, "max_relative_positions": -1,
    },
    "modernbert": {
        **SIZES, "local_attention": 16, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
        "eos_token_id": 2, "max_position_embeddings": 512,
    },
}  # fmt: skip
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def tokenizer_of(body: str, texts: list[str], folder: Path) -> None:
    """Write a small tokenizer of the body's usual kind: WordPiece, Unigram or byte-level BPE."""
    if body == "bert":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL)
    elif body == "deberta-v2":
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.NFKC()
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="[UNK]")
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = ("pad", "cls", "sep", "unk", "mask")
    known = {f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)}
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **known).save_pretrained(folder)


def make(folder: Path, kind: dict[str, Any], texts: list[str]) -> Any:
    """Save a random model; every parameter has noise, so that no part of it is passed over unnoticed."""
    fields, body = {**kind}, kind["body"]
    del fields["body"]
    tokenizer_of(body, texts, folder)
    is_token, labels_body = fields.get("span_mode") == "token_level", fields.pop("labels_body", None)
    of_kind: Any = UniEncoderTokenConfig if is_token else UniEncoderSpanConfig
    pieces = 300 if labels_body is None else 400  # `gliner` fits only the others to their tokenizers
    if labels_body is not None:
        of_kind = BiEncoderTokenConfig if is_token else BiEncoderSpanConfig
        wider = {"hidden_size": 40, "num_attention_heads": 5}
        fields["labels_encoder"] = str(folder / "labels")
        fields["labels_encoder_config"] = {
            "model_type": labels_body,
            "vocab_size": pieces,
            **BODIES[labels_body],
            **wider,
        }
        tokenizer_of(labels_body, texts, folder / "labels")
    config = of_kind(
        model_name=str(folder),
        encoder_config={"model_type": body, "vocab_size": pieces, **BODIES[body]},
        **fields,
    )
    torch.manual_seed(sum(map(ord, json.dumps(kind))))
    model = GLiNER.from_config(config.to_dict(), backbone_from_pretrained=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.eval()
    model.save_pretrained(folder)
    return model


def main() -> None:
    """Make all kinds, and write what they answer."""
    asked, root = json.load(sys.stdin), Path(sys.argv[1])
    for name, kind in asked["kinds"].items():
        folder = root / name
        folder.mkdir(parents=True)
        model = make(folder, kind, asked["texts"])
        expected = [
            {
                **way,
                "labels": labels,
                "entities": [
                    [[e["start"], e["end"], e["label"], e["score"]] for e in found]
                    for found in model.batch_predict_entities(asked["texts"], labels, **way)
                ],
            }
            for labels in asked["label_sets"]
            for way in asked["ways"]
        ]
        (folder / "expected.json").write_text(json.dumps(expected), "utf-8")


main()
