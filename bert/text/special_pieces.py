"""Padding, mask and unknown piece of a tokenizer, found by name; and how a piece is written."""

import re

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from bert.errors import CheckpointError

_RARE = "\U00012480"
"""A sign of cuneiform, which no vocabulary has."""


def pad_id(backend: tokenizers.Tokenizer) -> int:
    """Return the id of the padding; raises CheckpointError where there is none."""
    found = _special(backend, "pad")
    if found is None:
        raise CheckpointError(
            "the tokenizer has no padding token: neither [PAD] nor <pad> is in its vocabulary"
        )
    return found


def mask_id(backend: tokenizers.Tokenizer) -> int | None:
    """Return the id of the mask, None where there is none."""
    return _special(backend, "mask")


def unk_id(backend: tokenizers.Tokenizer) -> int | None:
    """Return the id of the unknown piece; None where there is none: bytes need no such piece.

    Raises CheckpointError for a tokenizer that needs one and has none.
    """
    try:
        backend.encode_batch_fast([_RARE], add_special_tokens=False)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"the tokenizer cannot read a character that is not in its vocabulary: {error}"
        ) from None
    stated = getattr(backend.model, "unk_token", None)
    named = backend.token_to_id(stated) if stated else None
    return _special(backend, "unk") if named is None else named


def _special(backend: tokenizers.Tokenizer, name: str) -> int | None:
    """Return the id of the special token that has no other letters; else of BERT's or RoBERTa's piece of that name.

    A vocabulary may have both families' pieces: MPNet's holds BERT's.
    """
    for number, token in backend.get_added_tokens_decoder().items():
        if token.special and "".join(filter(str.isalpha, token.content)).lower() == name:
            return number
    found = (backend.token_to_id(piece) for piece in (f"[{name.upper()}]", f"<{name}>"))
    return next((number for number in found if number is not None), None)


def hide_special_pieces(backend: tokenizers.Tokenizer) -> None:
    """Make a tokenizer read special pieces in a text as plain characters, by a split after their first one.

    `encode_special_tokens` does that too, but Unigram then finds "</s>" in its own vocabulary.
    """
    finds_whole_words = not isinstance(backend.model, models.BPE) or backend.model.ignore_merges
    added = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    known = [piece for piece in added if len(piece) > 1 and backend.model.token_to_id(piece) is not None]
    if not (finds_whole_words and known) or isinstance(
        backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer
    ):
        return
    pattern = "|".join(f"{re.escape(piece[0])}(?={re.escape(piece[1:])})" for piece in known)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    before = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([before, split]) if before else split


def written(backend: tokenizers.Tokenizer, piece: str) -> tuple[str, bool]:
    """Return the characters of a piece, and whether it goes on with the word before it.

    WordPiece marks the pieces that go on with a word, the others those that begin one: by a blank, which is kept.
    """
    if isinstance(backend.model, models.WordPiece):
        prefix = backend.model.continuing_subword_prefix
        goes_on = piece.startswith(prefix) and piece != prefix
        return piece.removeprefix(prefix) if goes_on else piece, goes_on
    if backend.decoder is None:
        return piece, False
    after_another = backend.decoder.decode(["a", piece]).removeprefix("a")
    return after_another, not after_another.startswith(" ")
