"""Words whose tags are not learned, because one file tags them otherwise than the others, or not at all."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bert.data.examples import UNLEARNED, WordsExample
from bert.errors import ConfigError
from bert.tasks.tag_sequence import HANDLES, left_out

CAPITALS = "capitals"
UNTAGGED_HANDLES = "untagged_handles"


def unlearned(
    examples: Sequence[WordsExample], kinds: Collection[str], path: str | Path = ""
) -> list[WordsExample]:
    """Return sentences of the file at `path` whose words of some kinds are labelled UNLEARNED.

    A kind is a type of entity, or one of three others. `handles` are names after an at sign. `untagged_handles` are at signs
    and the words after them that are tagged O, where taggers did not agree. `capitals` are capitalised words tagged O,
    other than a sentence's first: data that was tagged by machine often misses names. Raises ConfigError for a type that
    no word has.
    """
    types = {label[2:] for example in examples for label in example.labels} - {""}
    special = (HANDLES, UNTAGGED_HANDLES, CAPITALS)
    if unknown := sorted(set(kinds) - types - set(special)):
        known = (*special, *sorted(types))
        raise ConfigError(f"unlearned of {path} names {', '.join(unknown)}; known are {', '.join(known)}")
    return (
        [replace(example, labels=_labels(example, kinds)) for example in examples]
        if kinds
        else list(examples)
    )


def _labels(example: WordsExample, kinds: Collection[str]) -> tuple[str, ...]:
    skipped = {place for place, label in enumerate(example.labels) if label[2:] in kinds}
    if CAPITALS in kinds:
        tagged = enumerate(zip(example.words, example.labels, strict=True))
        skipped |= {place for place, (word, label) in tagged if place and label == "O" and word[:1].isupper()}
    if HANDLES in kinds:
        ends = np.cumsum([len(word) + 1 for word in example.words])
        bounds = np.stack([np.append(0, ends[:-1]), ends - 1], axis=1)
        skipped |= set(left_out(" ".join(example.words), bounds, (HANDLES,)).tolist())
    if UNTAGGED_HANDLES in kinds:
        names = {place + 1 for place, word in enumerate(example.words) if word == "@"}
        names |= {place for place, word in enumerate(example.words) if word.startswith("@")}
        skipped |= {place for place, label in enumerate(example.labels) if place in names and label == "O"}
    return tuple(UNLEARNED if place in skipped else label for place, label in enumerate(example.labels))
