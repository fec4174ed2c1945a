"""Entities out of questions: what a question asks for is the type of its answer."""

import json
from pathlib import Path

import pytest

from scripts.make_typed_answers import main, type_of


@pytest.mark.parametrize(
    ("question", "label"),
    [
        ("What album did she release in 2003?", "album"),
        ("In which city was the first match?", "city"),
        ("What operating system does it run?", "operating system"),
        ("Who wrote it?", "person"),
        ("What is it?", None),
        ("Why?", None),
        ("What product did they sell?", None),
    ],
)
def test_a_question_says_what_it_asks_for(question: str, label: str | None) -> None:
    assert type_of(question) == label


def test_a_sentence_has_the_places_of_its_answers(tmp_path: Path) -> None:
    context = "It rained. Ada lived in London, and sang. No one came."
    questions = [("Who sang?", "Ada"), ("What city did she live in?", "London"), ("What did she do?", "sang")]
    rows = [
        {"id": str(n), "question": q, "answers": [{"text": a, "answer_start": context.index(a)}]}
        for n, (q, a) in enumerate(questions)
    ]
    file = tmp_path / "squad.json"
    file.write_text(
        json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": rows}]}]}), "utf-8"
    )
    main(str(tmp_path / "out.jsonl"), str(file))
    (line,) = (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line) == {
        "text": "Ada lived in London, and sang.",
        "spans": [[0, 3, "person"], [13, 19, "city"]],
    }
