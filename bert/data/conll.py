"""Columns of words and tags (CoNLL 2003 and its like) to sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bert.data.examples import WordsExample
from bert.data.files import Problems, read_lines
from bert.data.tagged_words import LabelMap, check_known, is_tag, split_tag, to_bio
from bert.errors import DataError

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
        elif not _is_comment(line, columns[-1]):
            sentence += _word(number, columns, report)
    if sentence:
        yield sentence


def _columns(line: str) -> list[str]:
    """Part a line. With a tab anywhere only tabs part it, since a word may then hold a blank (tweets' do)."""
    if "\t" in line:
        return [column.strip() for column in line.split("\t")]
    return [column for column in line.strip().split(" ") if column]


def _is_comment(line: str, last: str) -> bool:
    """Tell `# sent_id = 7` from the word # with its tag."""
    return line.startswith("# ") and not is_tag(last)


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
