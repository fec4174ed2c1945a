"""Random GLiClasses made, saved and asked by `gliclass` itself, in the Python of an environment that has it.

    BERT_GLICLASS_PYTHON tests/support/gliclass_models.py FOLDER < JSON

The JSON has `texts`, `label_sets`, and `kinds`, the fields of a config by name. Each kind becomes FOLDER/NAME with the model
and `expected.json`: for every set of labels and both ways of scoring the score of each label, text by text.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gliclass import GLiClassModel, GLiClassModelConfig, ZeroShotClassificationPipeline
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LONGEST = 1024
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "deberta-v2": {
        **SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
        "position_buckets": 32, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0,
        "max_relative_positions": -1,
    },
    "modernbert": {
        **SIZES, "local_attention": 16, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
        "eos_token_id": 2,
    },
}  # fmt: skip
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def tokenizer_of(body: str, texts: list[str]) -> PreTrainedTokenizerFast:
    """Make a small tokenizer of the body's usual kind (WordPiece, Unigram or byte-level BPE) with the markers."""
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
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = ("pad", "cls", "sep", "unk", "mask")
    known = {f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=LONGEST, **known)
    tokenizer.add_tokens(["<<LABEL>>", "<<SEP>>"], special_tokens=True)
    return tokenizer


def make(folder: Path, kind: dict[str, Any], texts: list[str]) -> ZeroShotClassificationPipeline:
    """Save a random model; every parameter has noise, so that no part of it is passed over unnoticed."""
    fields = {**kind}
    body = fields.pop("body")
    tokenizer = tokenizer_of(body, texts)
    markers = tokenizer.convert_tokens_to_ids(["<<LABEL>>", "<<SEP>>"])
    config = GLiClassModelConfig(
        encoder_config={"model_type": body, "vocab_size": len(tokenizer), **BODIES[body]},
        encoder_model=str(folder),
        vocab_size=len(tokenizer),
        class_token_index=markers[0],
        text_token_index=markers[1],
        **fields,
    )
    torch.manual_seed(sum(map(ord, json.dumps(kind))))
    model = GLiClassModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ZeroShotClassificationPipeline(model, tokenizer, device="cpu", progress_bar=False)


def main() -> None:
    """Make all kinds, and write what they answer."""
    asked, root = json.load(sys.stdin), Path(sys.argv[1])
    torch.set_num_threads(1)
    for name, kind in asked["kinds"].items():
        folder = root / name
        folder.mkdir(parents=True)
        pipeline = make(folder, kind, asked["texts"])
        # One text at a time: the mean of all tokens has the padding of a batch in it.
        expected = [
            {
                "way": way,
                "labels": labels,
                "scores": [
                    [scores[label] for label in labels]
                    for scores in pipeline(
                        asked["texts"],
                        labels,
                        batch_size=1,
                        classification_type=way,
                        return_hierarchical=True,
                    )
                ],
            }
            for labels in asked["label_sets"]
            for way in ("single-label", "multi-label")
        ]
        (folder / "expected.json").write_text(json.dumps(expected), "utf-8")


main()
