"""Folders of models with a vector for each token: MultiVectorEncoder, PyLate, and Stanford's HF_ColBERT.

What is read decides which ids a query and a document have; what would change them and is not read is refused.
"""

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from bert.files import read_object
from bert.tasks.spec import DenseLayer, TaskSpec, TokenVectors
from bert.tasks.vectors.sentence_transformers import (
    LENGTHS,
    MODULES,
    SETTINGS,
    check_known,
    dense_layer,
    inputs,
    max_seq_length,
    read_file,
    read_modules,
    read_settings,
)
from bert.tokenizer import Tokenizer

ARTIFACT = "artifact.metadata"
"""Stanford's settings."""
STANFORD_LAYER = "linear.weight"
"""Tensor of Stanford's projection, which is among those of the body."""
_STANFORD, _PYLATE, _OWN = "HF_ColBERT", "ColBERT", "MultiVectorEncoder"
_PYLATE_KEYS = ("query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens")
_SIDES = ("query", "document")
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_WORDS = "token_embeddings"
_READ = (
    ("Transformer", "Dense", "MultiVectorMask", "Normalize", "Dropout"),
    re.compile("Transformer( Dense)*( MultiVectorMask)?( Normalize)?"),
    "Transformer, any number of Dense, at most one MultiVectorMask, and at most one Normalize at the end",
)
_LENGTHS_KEYS = ("query_length", "document_length", "query_expansion")
_SCORES = {"maxsim": False, "meanmaxsim": True}


def gives_token_vectors(settings: Mapping[str, Any], architecture: str) -> bool:
    """Tell by `config_sentence_transformers.json` and the class of `config.json` whether each token has a vector."""
    kind = settings.get("model_type")
    is_pylate = any(key in settings for key in _PYLATE_KEYS)
    return kind in (_PYLATE, _OWN) or is_pylate or (not kind and architecture == _STANFORD)


@dataclass(frozen=True, slots=True)
class _Said:
    """The settings of a folder, with pieces still as text."""

    lengths: Mapping[str, int | None]
    """Side → most tokens; None is the model's length."""
    prompts: Mapping[str, str]
    """Side → text before its texts, which may begin with a special token."""
    expansion: Any
    skipped: Collection[str]
    dense: tuple[DenseLayer, ...]
    normalize: bool = True
    mean: bool = False
    markers: Mapping[str, str] = field(default_factory=dict)
    """Side → the piece before its texts, special or not."""


def honour(folder: Path, max_tokens: int, width: int | None) -> TaskSpec:
    """Return the description of token vectors with all that the folder states.

    `max_tokens` is the length that the model and its tokenizer allow, `width` that of STANFORD_LAYER. Raises ConfigError,
    with file and value, for what would not be honoured.
    """
    tokenizer = Tokenizer.load(folder)
    said = _of_modules(folder) if (folder / MODULES).is_file() else _of_stanford(folder, width)
    before = {side: _before(tokenizer, said, side) for side in _SIDES}
    lengths = {side: min(said.lengths[side] or max_tokens, max_tokens) for side in _SIDES}
    expansion_id, filled, attends, is_fixed = _expansion(tokenizer, said.expansion)
    if filled > max_tokens:
        raise ConfigError(
            f"queries are filled up to {filled} tokens, and the model reads at most {max_tokens}"
        )
    if not isinstance(said.skipped, str | list | tuple) or not all(
        isinstance(word, str) for word in said.skipped
    ):
        raise ConfigError(f"skiplist_words ({said.skipped!r}) must be a list of texts")
    found = (tokenizer.token_to_id(word) for word in said.skipped)
    skipped = {number for number in found if number not in (None, tokenizer.unk_id)}
    if kept := skipped & {tokenizer.cls_id, tokenizer.sep_id, *(before[side][0] for side in _SIDES)}:
        pieces = ", ".join(repr(tokenizer.id_to_token(number)) for number in kept)
        raise ConfigError(
            f"skiplist_words has {pieces}, and a document of other skipped words would have no vector"
        )
    how = TokenVectors(
        filled if is_fixed else max(lengths["query"], filled),
        lengths["document"],
        before["query"][0],
        before["document"][0],
        expansion_id,
        filled,
        attends,
        tuple(sorted(skipped)),
        said.mean,
    )
    return TaskSpec(
        "token_vectors",
        token_vectors=how,
        dense=said.dense,
        normalize=said.normalize,
        prompts={side: text for side, (_, text) in before.items() if text},
        max_tokens=max(how.query_length, how.document_length),
    )


def dense_folders(folder: Path) -> list[Path]:
    """Return the folders of the dense layers."""
    return [folder / path for kind, path in read_modules(folder, *_READ) if kind == "Dense"]


def _of_modules(folder: Path) -> _Said:
    """Read a folder with `modules.json`; PyLate's settings overrule those of sentence-transformers."""
    settings, lengths, modules = (
        read_settings(folder),
        read_file(folder, LENGTHS),
        read_modules(folder, *_READ),
    )
    longest = max_seq_length(folder, "feature-extraction", "last_hidden_state", _LENGTHS_KEYS)
    own = {kind: read_file(folder, f"{path}/config.json") for kind, path in modules}
    mask = own.get("MultiVectorMask", {})
    check_known("MultiVectorMask", mask, {"skiplist_words"}, {"skiplist_tasks": ["document"]})
    check_known("Normalize", own.get("Normalize", {}), set(), inputs(_WORDS))
    score = str(settings.get("similarity_fn_name") or "maxsim")
    if score.lower() not in _SCORES:
        raise ConfigError(f"{SETTINGS}: similarity_fn_name is {score!r}; known are {', '.join(_SCORES)}")
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ConfigError(f"{SETTINGS}: prompts are {prompts!r}, and no texts by name")
    document = next((prompts[name] for name in _DOCUMENT_PROMPTS if name in prompts), "")
    both = (lengths.get(f"{side}_length") or longest for side in _SIDES)
    said = _Said(
        {side: _length(LENGTHS, value) for side, value in zip(_SIDES, both, strict=True)},
        {"query": prompts.get("query") or "", "document": document or ""},
        lengths.get("query_expansion"),
        mask.get("skiplist_words") or (),
        tuple(dense_layer(folder, path, _WORDS) for kind, path in modules if kind == "Dense"),
        "Normalize" in own,
        _SCORES[score.lower()],
    )
    is_pylate = settings.get("model_type") == _PYLATE or any(key in settings for key in _PYLATE_KEYS)
    return _of_pylate(settings, said) if is_pylate else said


def _of_pylate(settings: Mapping[str, Any], said: _Said) -> _Said:
    lengths = {side: _length(SETTINGS, settings.get(f"{side}_length")) for side in _SIDES}
    query, skipped = lengths["query"] or 32, settings.get("skiplist_words")
    markers = [settings.get(f"{side}_prefix") for side in _SIDES]
    expansion = {
        "strategy": "fixed",
        "attend": settings.get("attend_to_expansion_tokens") or False,
        "length": query,
    }
    usual = ("[Q] ", "[D] ")
    return replace(
        said,
        lengths={"query": query, "document": lengths["document"] or 180},
        markers={s: u if m is None else str(m) for s, m, u in zip(_SIDES, markers, usual, strict=True)},
        expansion=None if settings.get("do_query_expansion") is False else expansion,
        skipped=string.punctuation if skipped is None else skipped,
        normalize=True,
    )


def _of_stanford(folder: Path, width: int | None) -> _Said:
    if width is None:
        raise ConfigError(f"the checkpoint has no tensor {STANFORD_LAYER!r}, which an {_STANFORD} needs")
    values = read_object(folder / ARTIFACT)
    length = _length(ARTIFACT, values.get("query_maxlen")) or 32
    return _Said(
        {"query": length, "document": _length(ARTIFACT, values.get("doc_maxlen"))},
        {},
        {"strategy": "fixed", "attend": values.get("attend_to_mask_tokens") or False, "length": length},
        string.punctuation if values.get("mask_punctuation", True) else (),
        (DenseLayer(width, "identity"),),
        markers={
            "query": str(values.get("query_token_id") or "[unused0]"),
            "document": str(values.get("doc_token_id") or "[unused1]"),
        },
    )


def _length(file: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 4):
        raise ConfigError(f"{file}: a length is {value!r}, which is not a whole number of at least 4")
    return value


def _before(tokenizer: Tokenizer, said: _Said, side: str) -> tuple[int | None, str]:
    """Return the id of the special token before a side's texts, None without one, and the text between."""
    marker, prompt = said.markers.get(side, ""), said.prompts.get(side, "")
    written = marker + prompt.removeprefix(marker)
    for piece in (marker or written, *written.split(None, 1)[:1]):
        number = tokenizer.token_to_id(piece)
        if number is not None and (marker or number in tokenizer.special_ids()):
            rest = written.removeprefix(piece)
            return number, rest if tokenizer.ids([rest])[0] else ""
    if marker:
        raise ConfigError(f"the tokenizer has no piece {marker!r}, which stands before each {side}")
    return None, written


def _expansion(tokenizer: Tokenizer, values: Any) -> tuple[int | None, int, bool, bool]:
    """Return what fills a query: its id, up to how many tokens, whether others attend to it, whether queries end there."""
    if values is None:
        return None, 0, True, False
    what = f"query_expansion ({values!r})"
    if not isinstance(values, Mapping) or values.get("strategy") not in ("fixed", "min"):
        raise ConfigError(f"{what} must be an object with the strategy fixed or min")
    check_known("query_expansion", values, {"strategy", "attend", "token", "length"}, {})
    token, attends = values.get("token"), values.get("attend", False)
    usual = tokenizer.sep_id if tokenizer.mask_id is None else tokenizer.mask_id
    number = usual if token is None else tokenizer.token_to_id(str(token))
    length = _length("query_expansion", values.get("length"))
    if length is None or number is None or not isinstance(attends, bool):
        raise ConfigError(f"{what} must have a length, a token of the vocabulary, and attend true or false")
    if not attends and number != tokenizer.mask_id:
        raise ConfigError(
            f"{what} fills queries with {tokenizer.id_to_token(number)!r}, to which no token attends; that is built for the "
            "mask only: set attend to true if the model was trained so"
        )
    return number, length, attends, values["strategy"] == "fixed"
