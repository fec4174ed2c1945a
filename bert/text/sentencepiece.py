"""Unigram tokenizers from SentencePiece's `.model` files, each family's pieces in its own order."""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert.errors import CheckpointError
from bert.files import read_for_checkpoint
from bert.text.damage import check_charsmap, damage_refused
from bert.text.stated import BERT_PAIR, ROBERTA_PAIR, StatedTokens, special_pieces, special_template

MAX_BYTES, MAX_PIECES = 2**26, 2**20
"""Largest file and vocabulary that are read; XLM-R's have 5 MB and 250,000 pieces."""
Scored = tuple[str, float]
_UNIGRAM = 1
_FIXED = {1: 8, 5: 4}
"""Wire type of protobuf → bytes of its values."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The parts of a `.model` file that a tokenizer is made of."""

    pieces: list[Scored]
    unk_id: int
    charsmap: bytes
    """Compiled normalisation; empty for none."""
    byte_fallback: bool


def read_model(file: Path) -> SentencePieceModel:
    """Read a `.model` file. Raises CheckpointError for one that is damaged, too large or not of the type Unigram."""
    try:
        return _read(read_for_checkpoint(file, MAX_BYTES), file)
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{file} cannot be read as a SentencePiece model: {error}") from None


def _read(content: bytes, file: Path) -> SentencePieceModel:
    pieces, trainer, charsmap = list[Scored](), dict[int, int](), b""
    for number, value in _fields(content):
        if number == 1 and len(pieces) == MAX_PIECES:
            raise ValueError(f"more than {MAX_PIECES} pieces")
        if number == 1:
            pieces.append(_piece(_message(value)))
        elif number == 2:
            trainer |= {key: each for key, each in _fields(_message(value)) if isinstance(each, int)}
        elif number == 3:
            charsmap = _message(dict(_fields(_message(value))).get(2, b""))
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise CheckpointError(
            f"{file} is a SentencePiece model of type {trainer[3]}; only Unigram (1) is read"
        )
    unk_id = trainer.get(40, 0)
    if not pieces or not 0 <= unk_id < len(pieces):
        raise ValueError(f"{len(pieces)} pieces, of which the unknown one should be {unk_id}")
    return SentencePieceModel(pieces, unk_id, charsmap, bool(trainer.get(35)))


def _piece(message: bytes) -> Scored:
    fields = dict(_fields(message))
    text = _message(fields.get(1, b"")).decode("utf-8")
    (score,) = struct.unpack("<f", _message(fields.get(2, b"\0\0\0\0")))
    if not text or not math.isfinite(score):
        raise ValueError(f"a piece {text!r} of score {score}")
    return text, float(score)


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message; numbers of fixed width stay bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if kind == 2 else (_FIXED.get(kind, -1), at)
        if not 0 <= size <= len(message) - at:
            raise ValueError(f"a field of {size} bytes and wire type {kind} at byte {at} of {len(message)}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError(f"no number at byte {at} of {len(message)}")


def _xlm_roberta(model: SentencePieceModel, stated: StatedTokens) -> tuple[list[Scored], int]:
    special = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    return [*special, *model.pieces[3:], ("<mask>", 0.0)], 3


def _camembert(model: SentencePieceModel, stated: StatedTokens) -> tuple[list[Scored], int]:
    special = [(piece, 0.0) for piece in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    return [*special, ("<unk>NOTUSED", -100.0), *model.pieces[1:], ("<mask>", 0.0)], 3


def _albert(model: SentencePieceModel, stated: StatedTokens) -> tuple[list[Scored], int]:
    def score(piece: str, score: float) -> float:
        return score - 100 if piece[-1:] == "," and piece[-2:-1].isdigit() else score

    return [(piece, score(piece, given)) for piece, given in model.pieces], model.unk_id


def _albert_normalizers(stated: StatedTokens) -> list[normalizers.Normalizer]:
    made: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not stated.flag("keep_accents", default=False):
        made += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*made, normalizers.Lowercase()] if stated.flag("do_lower_case", default=True) else made


def _deberta_v2(model: SentencePieceModel, stated: StatedTokens) -> tuple[list[Scored], int]:
    known = any(piece == "[MASK]" for piece, _ in model.pieces)
    return [*model.pieces, *([] if known else [("[MASK]", 0.0)])], model.unk_id


def _deberta_v2_normalizers(stated: StatedTokens) -> list[normalizers.Normalizer]:
    lower = [normalizers.Lowercase()] if stated.flag("do_lower_case", default=False) else []
    return [*lower, normalizers.Strip()]


def _deberta_v2_splits(stated: StatedTokens) -> list[pre_tokenizers.PreTokenizer]:
    by_marks = stated.flag("split_by_punct", default=False)
    return [pre_tokenizers.Punctuation(behavior="isolated")] if by_marks else []


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Rules by which a family makes its tokenizer of a `.model` file."""

    vocabulary: Callable[[SentencePieceModel, StatedTokens], tuple[list[Scored], int]]
    """Function that returns all pieces with their scores, and the id of the unknown one."""
    special: Mapping[str, tokenizers.AddedToken]
    pair: str
    before: Callable[[StatedTokens], list[normalizers.Normalizer]] = lambda stated: []
    """Normalisations before the compiled one."""
    after: tuple[normalizers.Normalizer, ...] = ()
    """Normalisations after it."""
    splits: Callable[[StatedTokens], list[pre_tokenizers.PreTokenizer]] = lambda stated: [
        pre_tokenizers.WhitespaceSplit()
    ]
    """Splits of a text before blanks become a part of the words."""


_ROBERTA = special_pieces("<s>", "</s>", "<pad>", "<unk>", "<mask>")
_ALBERT = special_pieces("[CLS]", "[SEP]", "<pad>", "<unk>", "[MASK]")
_RECIPES = {
    "XLMRoberta": _Recipe(_xlm_roberta, _ROBERTA, ROBERTA_PAIR),
    "Camembert": _Recipe(_camembert, _ROBERTA, ROBERTA_PAIR),
    "Albert": _Recipe(_albert, _ALBERT, BERT_PAIR, _albert_normalizers),
    "DebertaV2": _Recipe(
        _deberta_v2,
        special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", mask_takes_blanks=False),
        BERT_PAIR,
        _deberta_v2_normalizers,
        (normalizers.Replace(tokenizers.Regex(" {2,}"), " "),),
        _deberta_v2_splits,
    ),
}
CLASSES = tuple(_RECIPES)
"""Classes of `transformers`, without "Tokenizer", whose `.model` files are read."""


def from_model(file: Path, name: str, stated: StatedTokens) -> tokenizers.Tokenizer:
    """Build the tokenizer of a `.model` file as the class of that name does. Raises CheckpointError."""
    model, recipe = read_model(file), _RECIPES[name]
    vocabulary, unk_id = recipe.vocabulary(model, stated)
    with damage_refused(file, "a SentencePiece model"):
        backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id, model.byte_fallback))
        if model.charsmap:
            check_charsmap(model.charsmap)
        charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
        backend.normalizer = normalizers.Sequence([*recipe.before(stated), *charsmap, *recipe.after])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*recipe.splits(stated), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    special = stated.add_to(backend, recipe.special)
    backend.post_processor = special_template(special, recipe.pair)
    return backend
