"""Special tokens of a tokenizer: padding, mask and unknown piece, and those around one text and around two."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from bert.encoding import PairForm
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


Item = tuple[int | str, int]
"""Id of a special token, or the name of a text ("A", "B"), with its segment."""
_KNOWN = (("[CLS]", "[SEP]", 1, 1), ("<s>", "</s>", 2, 0))
"""First and last special piece, how often the last stands between two texts, and the second text's segment."""


def pair_form(backend: tokenizers.Tokenizer) -> PairForm:
    """Return the form that a tokenizer's post-processor gives, or that of its special pieces where it has none.

    Raises CheckpointError for a form other than one special token before, one after, and one or two between two texts.
    """
    stated = backend.post_processor
    if stated is None:
        return _from_pieces(backend)
    processor = _find(json.loads(stated.__getstate__()))
    if processor is None:
        return _from_pieces(backend)
    try:
        single, pair = _READERS[processor["type"]](processor)
        return _form(single, pair)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"the tokenizer's {processor.get('type')} is damaged: {error!r}") from None


def _find(processor: dict[str, Any]) -> dict[str, Any] | None:
    """Return the part of a post-processor that places special tokens; others only trim offsets."""
    if processor.get("type") == "Sequence":
        found = [part for each in processor["processors"] if (part := _find(each))]
        if len(found) > 1:
            raise CheckpointError(
                "the tokenizer places special tokens twice: its post_processor has two templates"
            )
        return found[0] if found else None
    return processor if processor.get("type") in _READERS else None


def _from_pieces(backend: tokenizers.Tokenizer) -> PairForm:
    added = {token.content: number for number, token in backend.get_added_tokens_decoder().items()}
    for find in (added.get, backend.token_to_id):
        for first, last, between, segment in _KNOWN:
            cls_id, sep_id = find(first), find(last)
            if cls_id is not None and sep_id is not None:
                return PairForm(cls_id, sep_id, (sep_id,) * between, segment)
    raise CheckpointError(
        "the tokenizer has no post_processor and its vocabulary neither [CLS] and [SEP] nor <s> and </s>: it does not "
        "say which special tokens stand around a text"
    )


def _template(processor: dict[str, Any]) -> tuple[list[Item], list[Item]]:
    special = {name: token["ids"] for name, token in processor["special_tokens"].items()}

    def items(parts: Sequence[dict[str, Any]]) -> list[Item]:
        found = list[Item]()
        for part in parts:
            (kind, value), *_ = part.items()
            names = special[value["id"]] if kind == "SpecialToken" else [value["id"]]
            found += [(name, int(value["type_id"])) for name in names]
        return found

    return items(processor["single"]), items(processor["pair"])


def _fixed(processor: dict[str, Any], between: int, segment: int) -> tuple[list[Item], list[Item]]:
    cls_id, sep_id = int(processor["cls"][1]), int(processor["sep"][1])
    single: list[Item] = [(cls_id, 0), ("A", 0), (sep_id, 0)]
    return single, [*single, *[(sep_id, 0)] * (between - 1), ("B", segment), (sep_id, segment)]


_READERS: dict[str, Callable[[dict[str, Any]], tuple[list[Item], list[Item]]]] = {
    "TemplateProcessing": _template,
    "BertProcessing": lambda processor: _fixed(processor, 1, 1),
    "RobertaProcessing": lambda processor: _fixed(processor, 2, 0),
}


def _form(single: Sequence[Item], pair: Sequence[Item]) -> PairForm:
    match single:
        case [(int(cls_id), 0), ("A", 0), (int(sep_id), 0)]:
            pass
        case _:
            raise CheckpointError(
                f"the tokenizer writes one text as {_shown(single)}; read are one special token before it and one after, "
                "in segment 0"
            )
    match pair:
        case [(int(first), 0), ("A", 0), *middle, ("B", int(segment)), (int(last), int(of_last))] if (
            (first, last, of_last) == (cls_id, sep_id, segment)
            and len(middle) in (1, 2)
            and all(isinstance(name, int) and number == 0 for name, number in middle)
        ):
            return PairForm(cls_id, sep_id, tuple(int(name) for name, _ in middle), segment)
    raise CheckpointError(
        f"the tokenizer writes two texts as {_shown(pair)}; read are the special tokens of one text around them and one or "
        "two between, which are of the first text's segment 0"
    )


def _shown(items: Sequence[Item]) -> str:
    return " ".join(f"{name}:{segment}" for name, segment in items)
