"""Tokenizer settings from the files beside a vocabulary: class, special pieces and added pieces."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from bert.errors import CheckpointError
from bert.files import read_object

BERT_PAIR, ROBERTA_PAIR = "{cls} $A {sep} $B:1 {sep}:1", "{cls} $A {sep} {sep} $B {sep}"
"""Special pieces around two texts."""
_BESIDE = {"cls": "bos", "sep": "eos"}
"""Other names of RoBERTa's first and last piece, <s> and </s>, in some files."""


def special_pieces(
    cls: str, sep: str, pad: str, unk: str, mask: str, *, mask_takes_blanks: bool = True
) -> dict[str, AddedToken]:
    """Return the special pieces of a family by what they are for."""
    names = {"cls": cls, "sep": sep, "pad": pad, "unk": unk, "mask": mask}
    return {
        name: AddedToken(piece, lstrip=name == "mask" and mask_takes_blanks, normalized=False, special=True)
        for name, piece in names.items()
    }


def special_template(
    special: Mapping[str, tuple[str, int]], pair: str = BERT_PAIR
) -> processors.TemplateProcessing:
    """Return the step that puts the first and the last special piece around one text, and around two as `pair` has them."""
    cls, sep = special["cls"], special["sep"]
    return processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}",
        pair=pair.format(cls=cls[0], sep=sep[0]),
        special_tokens=[cls, sep],
    )


@dataclass(frozen=True, slots=True)
class StatedTokens:
    """`tokenizer_config.json` and its neighbours in one folder."""

    folder: Path
    config: Mapping[str, Any]
    """Content of `tokenizer_config.json`."""
    special: Mapping[str, Any]
    """Content of `special_tokens_map.json`."""
    added: Mapping[int, AddedToken]
    """Id → piece of `added_tokens_decoder`."""
    listed: Mapping[int, AddedToken]
    """Id → piece of `added_tokens.json`, which says nothing but names."""
    tokenizer_class: str
    """Class of `transformers`, without "Tokenizer" and "Fast"; "" where no file names the kind."""
    model_type: str

    @classmethod
    def read(cls, folder: Path) -> "StatedTokens":
        """Read what there is in a folder. Raises CheckpointError for a file that is damaged."""
        config, model = read_object(folder / "tokenizer_config.json"), read_object(folder / "config.json")
        name = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "")
        name = name.removesuffix("Fast").removesuffix("Tokenizer")
        return cls(
            folder,
            config,
            read_object(folder / "special_tokens_map.json"),
            *_added(folder, config),
            "" if name == "PreTrained" else name,
            str(model.get("model_type") or ""),
        )

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a setting of `tokenizer_config.json`. Raises CheckpointError where it is not true or false."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(
                f"{self.folder / 'tokenizer_config.json'}: {name} ({value!r}) must be true or false"
            )
        return value

    def add_to(
        self, backend: tokenizers.Tokenizer, defaults: Mapping[str, AddedToken], *, needs_all: bool = True
    ) -> dict[str, tuple[str, int]]:
        """Make the special pieces special, add the pieces of the files; return the special ones with their ids.

        `defaults` has each special piece of this family. Special pieces that no file gives an id come last, as
        `transformers` adds them. Raises CheckpointError where the vocabulary lacks a special piece, unless it is a
        default and not `needs_all`, or where an added piece gets another id than its file says.
        """
        tokens = {name: self.special_piece(name, default) for name, default in defaults.items()}
        known, further = backend.get_vocab(), self._further()
        backend.add_special_tokens([token for token in tokens.values() if token.content in known])
        by_content = {token.content: token for token in (*further, *tokens.values())}
        for number, token in sorted({**self.listed, **self.added}.items()):
            token = by_content.get(token.content, token)
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
            if (found := backend.token_to_id(token.content)) != number:
                raise CheckpointError(
                    f"{self.folder}: the added piece {token.content!r} gets the id {found}, and its file says {number}"
                )
        backend.add_special_tokens(further)
        pieces, known = {name: token.content for name, token in tokens.items()}, backend.get_vocab()
        missing = [piece for piece in pieces.values() if piece not in known]
        if not needs_all:
            missing = [
                piece for piece in missing if piece not in {each.content for each in defaults.values()}
            ]
        if missing:
            raise CheckpointError(f"{self.folder}: the vocabulary lacks {', '.join(missing)}")
        return {name: (piece, known[piece]) for name, piece in pieces.items() if piece in known}

    def special_piece(self, name: str, default: AddedToken) -> AddedToken:
        """Return the special piece that the files name; it takes blanks as the default does unless they say otherwise."""
        keys = [f"{name}_token"]
        if name in _BESIDE and default.content.startswith("<"):
            keys.append(f"{_BESIDE[name]}_token")
        stated = (source[key] for source in (self.config, self.special) for key in keys if source.get(key))
        value = next(stated, default.content)
        return self._as_token(value, lstrip=default.lstrip)

    def _further(self) -> list[AddedToken]:
        """Return the special pieces that have no task of their own."""
        found = dict[str, AddedToken]()
        for source in (self.config, self.special):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                values = source.get(key) or []
                values = list(values.values()) if isinstance(values, dict) else values
                if not isinstance(values, list):
                    raise CheckpointError(f"{self.folder}: {key} ({values!r}) must be a list")
                for token in map(self._as_token, values):
                    found.setdefault(token.content, token)
        return list(found.values())

    def _as_token(self, value: Any, *, lstrip: bool = False) -> AddedToken:
        if isinstance(value, str):
            same = (token for token in self.added.values() if token.content == value)
            return next(same, AddedToken(value, lstrip=lstrip, normalized=False, special=True))
        return _token(value, self.folder, special=True)


def _added(folder: Path, config: Mapping[str, Any]) -> tuple[dict[int, AddedToken], dict[int, AddedToken]]:
    """Return the pieces of `added_tokens_decoder` and those of `added_tokens.json`."""
    listed, decoder = read_object(folder / "added_tokens.json"), config.get("added_tokens_decoder") or {}
    try:
        return (
            {int(number): _token(token, folder) for number, token in decoder.items()},
            {int(number): AddedToken(piece, normalized=False) for piece, number in listed.items()},
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: the added pieces are damaged: {error}") from None


def _token(value: Any, folder: Path, *, special: bool = False) -> AddedToken:
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(
            f"{folder}: a special piece ({value!r}) must be a text or an object with a `content`"
        )
    flags = {name: bool(value.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
    return AddedToken(value["content"], special=special or bool(value.get("special")), **flags)
