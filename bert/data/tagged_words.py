"""Words with tags: any scheme of tags to BIO, and columns of words and tags (CoNLL 2003 and its like) to sentences."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from bert.data.examples import WordsExample
from bert.data.files import Problems, read_lines
from bert.errors import DataError

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


NO_COLUMNS = (
    "no line is a word with its tag; ner reads CoNLL columns, and json with spans or with tokens and tags"
)
Line = tuple[int, str, str]  # line, word, tag
Report = Callable[[int, str], None]
"""Takes a line's number and what is wrong with it."""


def read_conll(
    path: str | Path,
    label_map: LabelMap | None = None,
    labels: Sequence[str] | None = None,
) -> list[WordsExample]:
    """Read sentences of one word a line, parted by blank lines or -DOCSTART-; columns by tabs or blanks.

    The word is the first column, its tag the last.

    Tags may be BIO, IOB1, BIOES, BILOU or BMES and come out as BIO: an I- that does not go on from the same
    type starts an entity, as the scorers read it. `label_map` renames types, and None makes a type O:
    {"person": "PER", "MISC": None}; others stay. `labels`: when given, any other label is a problem.
    An empty word tagged O is left out. An id is the line on which its sentence starts.
    Raises DataError with all lines that cannot be read.
    """
    problems = Problems(path)
    examples = []
    for sentence in sentences(read_lines(path), problems.add):
        tags = to_bio([tag for _, _, tag in sentence], label_map)
        for (number, _, _), tag in zip(sentence, tags, strict=True):
            try:
                check_known([tag], labels)
            except ValueError as error:
                problems.add(number, str(error))
        words = tuple(word for _, word, _ in sentence)
        examples.append(WordsExample(words, tuple(tags), str(sentence[0][0])))
    if not examples and problems.first:
        line, reason = problems.first
        raise DataError(path, line if isinstance(line, int) else None, f"{reason}; {NO_COLUMNS}")
    if not examples:
        problems.add(None, "has no sentences")
    problems.raise_if_any()
    return examples


def sentences(lines: Iterable[str], report: Report) -> Iterator[list[Line]]:
    """Yield sentences of one word a line, parted by blank lines or -DOCSTART-; columns by tabs or blanks.

    Lines that cannot be read go to `report` instead. Comments (`# sent_id = 7`) and empty words tagged O are left out.
    """
    sentence: list[Line] = []
    for number, line in enumerate(lines, 1):
        columns = _columns(line)
        if not columns or columns[0] == "-DOCSTART-":
            if sentence:
                yield sentence
            sentence = []
        elif not line.startswith("# ") or is_tag(columns[-1]):  # `# sent_id = 7`, not the word # with its tag
            sentence += _word(number, columns, report)
    if sentence:
        yield sentence


def _columns(line: str) -> list[str]:
    """Part a line. With a tab anywhere only tabs part it, since a word may then hold a blank (tweets' do)."""
    if "\t" in line:
        return [column.strip() for column in line.split("\t")]
    return [column for column in line.strip().split(" ") if column]


def is_tagged_word(line: str) -> bool:
    """Tell whether a line is a word, perhaps other columns, and a tag."""
    columns = _columns(line)
    return len(columns) > 1 and is_tag(columns[-1])


def _word(number: int, columns: list[str], report: Report) -> list[Line]:
    if len(columns) < 2:
        report(number, f"has {len(columns)} columns instead of a word and its tag")
        return []
    word, tag = columns[0], columns[-1]
    try:
        split_tag(tag)
    except ValueError as error:
        report(number, str(error))
        return []
    if not word and tag == "O":
        return []  # BTC has some: an emoji that was lost
    if not word:
        report(number, f"has the tag {tag} but no word")
    return [(number, word, tag)]
