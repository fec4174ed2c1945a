"""BERT's own tokenisation from a vocabulary file."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert.errors import CheckpointError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def from_vocabulary(file: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Build the tokenizer of a `vocab.txt`, a piece a line, its line number the id.

    A `tokenizer_config.json` beside it is obeyed; `lowercase` overrides what it says. Raises CheckpointError.
    """
    try:
        # Not splitlines(): the Chinese vocabulary has U+2028 as a piece.
        pieces = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from None
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise CheckpointError(f"{file} has {len(pieces)} lines but only {len(vocabulary)} different pieces")
    stated = _stated(file.parent / "tokenizer_config.json")
    if lowercase is None:
        lowercase = stated.get("do_lower_case")
    if lowercase is None:
        lowercase = _is_lowercase(pieces)
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=stated.get("tokenize_chinese_chars", True),
        strip_accents=stated.get("strip_accents"),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([piece for piece in SPECIAL_PIECES if piece in vocabulary])
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:  # for others that read the file once it is saved
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")],
        )
    return backend


def stated_config(backend: tokenizers.Tokenizer) -> dict[str, object]:
    """Return the `tokenizer_config.json` of a tokenizer.

    `transformers` takes a BERT for uncased without it, whatever its tokenizer.json says.
    """
    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return {}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": normalizer.handle_chinese_chars,
    }


def has_bert_words(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether a tokenizer's own words are BERT's, so that no piece holds a blank or lies in two words."""
    return isinstance(backend.model, models.WordPiece) and isinstance(
        backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer
    )


def splits_at_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether a tokenizer normalises and splits as BERT does, so that parts between spaces are independent."""
    added = backend.get_added_tokens_decoder().values()
    return (
        isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and all(token.special for token in added)  # others are looked for in the text before it is split
    )


def _stated(config: Path) -> dict[str, bool]:
    """Return what a `tokenizer_config.json` says of the normalisation; nothing where there is none."""
    if not config.is_file():
        return {}
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{config} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{config} holds {type(content).__name__}, not an object")
    settings = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")
    stated = {key: content[key] for key in settings if content.get(key) is not None}
    for key, value in stated.items():
        if not isinstance(value, bool):
            raise CheckpointError(f"{config}: {key} ({value!r}) must be true or false")
    return stated


def _is_lowercase(pieces: list[str]) -> bool:
    """Ask the vocabulary: a cased one has capitals outside its special pieces."""
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith(("[", "<")))
