"""BERT's own tokenisation from a vocabulary file, and offsets that keep a letter and its marks together."""

import json
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert.encoding import Ints
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


def word_bounds(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return start and end, in code points, of each word of each text, as BERT splits them before any vocabulary.

    Words are what lies between blanks and punctuation; a punctuation mark and a Chinese character are words of their own.
    """
    return [
        encoded.offsets for encoded in _word_splitter().encode_batch(list(texts), add_special_tokens=False)
    ]


@cache
def _word_splitter() -> tokenizers.Tokenizer:
    splitter = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    splitter.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    splitter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return splitter


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


def extend_over_marks(text: str, offsets: Ints) -> None:
    """Move each end in `offsets` (T, 2), in place, past the combining marks that follow it.

    An uncased tokenizer drops accents, so a decomposed "e" + U+0301 gives a piece over the "e" alone; an
    answer that ends there would lose its accent.
    """
    limits = np.append(offsets[1:, 0], len(text))
    for row in np.flatnonzero(offsets[:, 1] < limits):
        end, limit = int(offsets[row, 1]), int(limits[row])
        while end < limit and unicodedata.category(text[end]) in ("Mn", "Me"):
            end += 1
        offsets[row, 1] = end
