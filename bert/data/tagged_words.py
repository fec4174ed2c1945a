"""Words with tags, wherever they came from: numbers by their names, and any scheme of tags to BIO."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from bert.data.examples import WordsExample

LabelMap = Mapping[str, str | None]
"""Types of entities and their new names; None makes a type O."""
_STARTS, _INSIDE = "BSU", "IELM"  # BIO, BIOES, BILOU, BMES


class UnnamedTagsError(ValueError):
    """Tags are numbers, and nothing says what they stand for."""


def tagged_words(
    words: Sequence[Any],
    tags: Sequence[Any],
    place: object,
    *,
    columns: tuple[str, str],
    names: Sequence[str] = (),
    label_map: LabelMap | None = None,
    labels: Sequence[str] | None = None,
) -> WordsExample:
    """Return a sentence of words with a tag each; `place` is its id, and empty words tagged O are left out.

    `columns` are the names of words and tags in messages, `names` those of tags that are numbers; `label_map` and `labels`
    are as in `read_conll`. Raises ValueError with the reason, UnnamedTagsError for numbers without names.
    """
    if len(words) != len(tags):
        raise ValueError(f"has {len(words)} words and {len(tags)} tags")
    if any(not isinstance(word, str) for word in words):
        raise ValueError(f"{columns[0]!r} holds something that is not text")
    found = to_bio(named_tags(tags, columns[1], names), label_map)
    if lost := [tag for word, tag in zip(words, found, strict=True) if not word.strip() and tag != "O"]:
        raise ValueError(f"has the tag {lost[0]} but no word")
    check_known(found, labels)
    kept = [(word, tag) for word, tag in zip(words, found, strict=True) if word.strip()]
    return WordsExample(tuple(word for word, _ in kept), tuple(tag for _, tag in kept), str(place))


def check_known(tags: Sequence[str], labels: Sequence[str] | None) -> None:
    """Raise ValueError for a tag that is not among the labels; None allows any."""
    if labels is not None and (unknown := [tag for tag in tags if tag not in labels]):
        raise ValueError(f"unknown label {unknown[0]!r}; known are {', '.join(labels)}")


def named_tags(tags: Sequence[Any], column: str, names: Sequence[str]) -> list[str]:
    """Return tags as text, numbers by their names. Raises ValueError, and UnnamedTagsError where there are no names."""
    if all(isinstance(tag, str) for tag in tags):
        return list(tags)
    if not all(type(tag) is int for tag in tags):
        raise ValueError(f"{column!r} holds something that is neither text nor number")
    if not names:
        raise UnnamedTagsError(
            f"{column!r} holds numbers: say what they stand for, label_names: [O, B-PER, I-PER, ...] for this file"
        )
    if (wrong := next((tag for tag in tags if not 0 <= tag < len(names)), None)) is not None:
        raise ValueError(f"{column!r} holds {wrong}, and label_names names 0 to {len(names) - 1}")
    return [names[tag] for tag in tags]


def bio_labels(examples: Sequence[WordsExample]) -> tuple[str, ...]:
    """Return O and then B- and I- of every type that occurs, by name: the order of a model's labels."""
    types = sorted({label[2:] for example in examples for label in example.labels if label != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def to_bio(tags: Sequence[str], label_map: LabelMap | None = None) -> list[str]:
    """Normalise the tags of one sentence to BIO, then rename types. Raises ValueError for anything else.

    Tags may be BIO, IOB1, BIOES, BILOU or BMES. In this order, so that two types that get one name stay two entities
    where they meet; a type renamed None becomes O.
    """
    out, previous = [], ""
    for tag in tags:
        prefix, kind = split_tag(tag)
        starts = prefix in _STARTS or kind != previous
        name = (label_map or {}).get(kind, kind)
        out.append(f"{'B' if starts else 'I'}-{name}" if name else "O")
        # After the end of an entity (E, L, S, U) even an I- of the same type is a new one.
        previous = "" if prefix in "ELSU" else kind
    return out


@lru_cache(maxsize=1024)  # a file has millions of words and a dozen tags
def split_tag(tag: str) -> tuple[str, str]:
    """Return the letter and the type of a tag, "O" and "" for O. Raises ValueError for anything else."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    if not dash or not kind or len(prefix) != 1 or prefix not in _STARTS + _INSIDE:
        raise ValueError(f"{tag!r} is not a tag like O, B-PER or I-PER")
    return prefix, kind


def is_tag(text: str) -> bool:
    """Tell whether a text is a tag of any scheme."""
    try:
        split_tag(text)
    except ValueError:
        return False
    return True
