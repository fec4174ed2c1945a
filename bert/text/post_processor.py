"""Special tokens around one text and around two, as the post-processor of a `tokenizer.json` puts them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers

from bert.encoding import PairForm
from bert.errors import CheckpointError

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
