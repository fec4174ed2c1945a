from collections.abc import Callable
from pathlib import Path

import pytest

from bert.errors import DataError
from training.labelled.choice import read_choice

Write = Callable[[str, str], Path]
SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def test_codah_has_category_prompt_endings_and_index(write: Write) -> None:
    (example,) = read_choice(write("a.tsv", "o\tJoseph has no hair. He\tis tall.\tis bald.\t1\n"))
    assert example.prompt == "Joseph has no hair. He"
    assert example.choices == ("is tall.", "is bald.")
    assert example.label == 1


def test_swag_puts_the_start_of_the_sentence_before_each_ending(write: Write) -> None:
    row = '0,a1,3,"He stops. She","He stops, then.",She,gold,walks.,runs.,sits.,"jumps, twice.",3\n'
    (example,) = read_choice(write("a.csv", SWAG_HEADER + row))
    assert example.prompt == "He stops, then."
    assert example.choices == ("She walks.", "She runs.", "She sits.", "She jumps, twice.")
    assert example.label == 3


def test_json_lines_with_any_number_of_choices(write: Write) -> None:
    (example,) = read_choice(
        write("a.jsonl", '{"prompt": "2 + 2 =", "choices": ["3", "4", "5"], "label": 1}\n')
    )
    assert example.choices == ("3", "4", "5")
    assert example.label == 1


def test_every_bad_row_is_told_with_its_line(write: Write) -> None:
    content = "o\tA\tx\ty\t2\no\t \tx\ty\t0\no\tA\tx\ty\tone\no\tA\tx\t \t0\no\tA\t0\n"
    with pytest.raises(DataError) as error:
        read_choice(write("a.tsv", content))
    told = str(error.value)
    assert "line 1: the label is '2'; it must be the index of a choice, 0 to 1" in told
    assert "line 2: the prompt is empty" in told
    assert "line 3: the label is 'one'" in told
    assert "line 4: choice 1 is empty" in told
    assert "line 5: has 3 columns" in told


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "sent1,label\nx,0\n", "has no column 'sent2'"),
        ("a.jsonl", '{"prompt": "x", "choices": "abc", "label": 0}', "'choices' is not a list of texts"),
        ("a.jsonl", '{"prompt": "x", "choices": ["a"], "label": 0}', "has 1 choices; two or more are needed"),
        ("a.txt", "x", "is not .tsv"),
        (
            "a.jsonl",
            '{"prompt": "x\\ud800", "choices": ["a", "b"], "label": 0}',
            ":1: the prompt is not valid Unicode: it has half of a surrogate pair",
        ),
        (
            "a.json",
            '[{"prompt": "x", "choices": ["a", "\\ud800"], "label": 0}]',
            "row 1: choice 1 is not valid Unicode",
        ),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(write: Write, name: str, content: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_choice(write(name, content))


@pytest.mark.parametrize(("file", "rows"), [("codah-dev.tsv", 576), ("codah-train.tsv", 2200)])
def test_every_row_of_codah_is_read(shared_data: Path, file: str, rows: int) -> None:
    examples = read_choice(shared_data / "choice" / file)
    assert len(examples) == rows
    assert all(len(example.choices) == 4 for example in examples)
