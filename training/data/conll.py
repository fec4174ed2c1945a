"""Columns of words and tags (CoNLL 2003 and its like), to BIO."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bert.conll import sentences, to_bio
from training.data.examples import WordsExample
from training.data.files import read_lines
from training.data.problems import Problems


def read_conll(
    path: str | Path,
    label_map: Mapping[str, str | None] | None = None,
    labels: Sequence[str] | None = None,
    word_column: int = 0,
    tag_column: int = -1,
) -> list[WordsExample]:
    r"""Read sentences of one word a line, parted by blank lines or -DOCSTART-; columns by tabs or blanks.

    Tags may be BIO, IOB1, BIOES, BILOU or BMES and come out as BIO: an I- that does not go on from the same
    type starts an entity, as the scorers read it. `label_map` renames types, and None makes a type O:
    {"person": "PER", "MISC": None}; others stay. `labels`: when given, any other label is a problem.
    An empty word tagged O is left out. An id is the line on which its sentence starts.
    Raises DataError with all lines that cannot be read.
    """
    problems = Problems(path)
    examples = []
    for sentence in sentences(read_lines(path), problems.add, word_column, tag_column):
        tags = to_bio([tag for _, _, tag in sentence], label_map)
        for (number, _, _), tag in zip(sentence, tags, strict=True):
            if labels is not None and tag not in labels:
                problems.add(number, f"unknown label {tag!r}; known are {', '.join(labels)}")
        words = tuple(word for _, word, _ in sentence)
        examples.append(WordsExample(words, tuple(tags), str(sentence[0][0])))
    if not examples and not len(problems):
        problems.add(None, "has no sentences")
    problems.raise_if_any()
    return examples


def bio_labels(examples: Sequence[WordsExample]) -> tuple[str, ...]:
    """Return O and then B- and I- of every type that occurs, by name: the order of a model's labels."""
    types = sorted({label[2:] for example in examples for label in example.labels if label != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))
