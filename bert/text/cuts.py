"""Places where a long text can be cut so that the pieces of its parts are those of the whole."""

import json
import re
from collections.abc import Iterator
from typing import Any

import tokenizers

from bert.text.wordpiece import splits_at_spaces

SPLIT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""Characters before which BERT's tokenizer starts anew: ASCII white space and punctuation."""
SPLIT_CHINESE = re.compile(r"[\t\n\r !-/:-@\[-`{-~\u4e00-\u9fff]")
"""The same with Chinese characters, for tokenizers that separate them."""
SPLIT_SPACE = re.compile(r"(?<=\S) (?=\S)")
"""A single space between two words, before which GPT-2's rule and a split at white space start anew."""
_BY_CHARACTER = {"NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt", "Precompiled", "Strip"}
"""Normalisations that never join characters over a space."""
_REPLACED = ({"Regex": " {2,}"}, {"String": "``"}, {"String": "''"})


def cut_pattern(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return a pattern before whose matches a text can be cut; None for a tokenizer of which that is not known."""
    if splits_at_spaces(backend):
        return SPLIT_CHINESE if backend.normalizer.handle_chinese_chars else SPLIT
    if not all(map(_leaves_spaces, backend.get_added_tokens_decoder().values())):
        return None
    normalizations = _steps(backend.normalizer, "normalizers")
    match [(step["type"], step) for step in _steps(backend.pre_tokenizer, "pretokenizers")]:
        case [("ByteLevel", {"use_regex": True})]:
            exact = all(step["type"] == "NFC" for step in normalizations)
        case [("WhitespaceSplit", _), ("Metaspace", {"prepend_scheme": "always"})]:
            exact = all(_is_by_character(step) for step in normalizations)
        case _:
            exact = False
    return SPLIT_SPACE if exact else None


def _leaves_spaces(token: tokenizers.AddedToken) -> bool:
    """Tell whether a token is never found over a single space, though looked for in the text before it is split."""
    is_run = len(token.content) > 1 and not token.content.strip(" ")
    takes_more = token.lstrip or token.rstrip
    return token.special or (not takes_more and (is_run or " " not in token.content))


def _is_by_character(step: dict[str, Any]) -> bool:
    return step["type"] in _BY_CHARACTER or (step["type"] == "Replace" and step["pattern"] in _REPLACED)


def _steps(component: Any, name: str) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokenizer in their order, [] without one."""
    if component is None:
        return []

    def flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if step["type"] == "Sequence":
            for each in step[name]:
                yield from flat(each)
        else:
            yield step

    return list(flat(json.loads(component.__getstate__())))
