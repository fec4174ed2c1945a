"""BERT's own tokenisation built from a vocabulary file, and offsets that keep a letter and its marks together."""

import json
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert.encoding import Ints
from bert.errors import CheckpointError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def from_vocabulary(file: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Build the tokenizer of a `vocab.txt`, a piece a line, its line number the id."""
    # Not splitlines(): the Chinese vocabulary has U+2028 as a piece.
    pieces = [line.rstrip("\r") for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise CheckpointError(f"{file} has {len(pieces)} lines but only {len(vocabulary)} different pieces")
    if lowercase is None:
        lowercase = _is_lowercase(file, pieces)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([piece for piece in SPECIAL_PIECES if piece in vocabulary])
    return backend


def _is_lowercase(file: Path, pieces: list[str]) -> bool:
    """Ask `tokenizer_config.json`, else the vocabulary: a cased one has capitals outside its special pieces."""
    config = file.parent / "tokenizer_config.json"
    if config.is_file():
        stated = json.loads(config.read_text(encoding="utf-8")).get("do_lower_case")
        if stated is not None:
            return bool(stated)
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith(("[", "<")))


def extend_over_marks(text: str, offsets: Ints) -> None:
    """Move each end in `offsets` (T, 2), in place, past the combining marks that follow it.

    An uncased tokenizer drops accents, so a decomposed "e" + U+0301 gives a piece over the "e" alone; an answer
    that ends there would lose its accent.
    """
    for row in range(len(offsets)):
        end = int(offsets[row, 1])
        limit = int(offsets[row + 1, 0]) if row + 1 < len(offsets) else len(text)
        while end < limit and unicodedata.category(text[end]) in ("Mn", "Me"):
            end += 1
        offsets[row, 1] = end
