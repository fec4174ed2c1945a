"""Byte-level BPE as RoBERTa, the first DeBERTa and ModernBERT have it, from `vocab.json` and `merges.txt` or a model."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bert.text.damage import damage_refused
from bert.text.stated import StatedTokens, special_pieces, special_template

ROBERTA_PIECES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special pieces of RoBERTa; all but the mask are the first of its vocabulary, in this order."""
_BERT = special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
_SPECIAL = {
    "Roberta": special_pieces("<s>", "</s>", "<pad>", "<unk>", "<mask>"),
    "Deberta": _BERT,
    "ModernBert": _BERT,
}
CLASSES = ("Roberta", "Deberta")
"""Classes of `transformers`, without "Tokenizer", whose files are read."""


def from_merges(folder: Path, name: str, stated: StatedTokens) -> tokenizers.Tokenizer:
    """Build the tokenizer of `vocab.json` and `merges.txt` as the class of that name does. Raises CheckpointError."""
    files = folder / "vocab.json", folder / "merges.txt"
    with damage_refused(files[0], f"BPE with {files[1].name}"):
        model = models.BPE.from_file(*map(str, files))
    return from_model(model, name, stated)


def from_model(model: models.BPE, name: str, stated: StatedTokens) -> tokenizers.Tokenizer:
    """Build the tokenizer of a BPE over bytes as the family of that name publishes it. Raises CheckpointError."""
    backend = tokenizers.Tokenizer(model)
    add_prefix_space = stated.flag("add_prefix_space", default=False)
    if name == "ModernBert":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    special = stated.add_to(backend, _SPECIAL[name])
    if name == "Roberta":
        backend.post_processor = processors.RobertaProcessing(
            special["sep"], special["cls"], add_prefix_space=add_prefix_space
        )
        return backend
    backend.post_processor = special_template(special)
    return backend


def stated_config(backend: tokenizers.Tokenizer) -> dict[str, object]:
    """Return the `tokenizer_config.json` by which `transformers` takes a tokenizer for RoBERTa's, {} for another."""
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    model, splits = backend.model, backend.pre_tokenizer
    if not isinstance(model, models.BPE) or not isinstance(splits, pre_tokenizers.ByteLevel):
        return {}
    state = json.loads(splits.__getstate__())
    same = models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=state["add_prefix_space"])
    if (
        set(added) != set(ROBERTA_PIECES)
        or backend.normalizer is not None
        or splits.__getstate__() != same[1].__getstate__()
        or _rules(model) != _rules(same[0])
        or not isinstance(backend.post_processor, processors.RobertaProcessing)
    ):
        return {}
    trims = json.loads(backend.post_processor.__getstate__())["trim_offsets"]
    cls, pad, sep, unk, mask = (_written(added[piece]) for piece in ROBERTA_PIECES)
    return {
        "tokenizer_class": "RobertaTokenizer",
        "add_prefix_space": state["add_prefix_space"],
        "trim_offsets": trims,
        **{"bos_token": cls, "eos_token": sep, "cls_token": cls, "sep_token": sep},
        **{"pad_token": pad, "unk_token": unk, "mask_token": mask},
    }


def _rules(model: models.BPE) -> tuple[object, ...]:
    """Return how a BPE merges, apart from its vocabulary; an unknown piece is never needed over bytes."""
    affixes = model.continuing_subword_prefix or "", model.end_of_word_suffix or ""
    return *affixes, model.dropout, model.ignore_merges, model.byte_fallback


def _written(token: AddedToken) -> dict[str, object]:
    flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "normalized")}
    return {"__type": "AddedToken", "content": token.content, **flags}
