import json
import logging
from pathlib import Path
from typing import Any

import pytest

from bert.data.squad import read_squad
from bert.errors import DataError
from tests.support.files import Write

CONTEXT = "Ada Lovelace was born in London in 1815, and died in London."


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> str:
    paragraph = {"context": context, "qas": list(questions)}
    article = {"title": "Ada_Lovelace", "paragraphs": [paragraph]}
    return json.dumps({"version": "v2.0", "data": [article]}, indent=1, ensure_ascii=False)


def question(id: str = "q1", text: str = "1815", start: int = 35, **other: Any) -> dict[str, Any]:
    return {
        "id": id, "question": "When?", "answers": [{"text": text, "answer_start": start}], **other
    }  # fmt: skip


def test_an_answer_keeps_its_place_and_the_title(write: Write) -> None:
    (example,) = read_squad(write("a.json", squad(question())))
    assert example.answers == (("1815", 35),)
    assert example.title == "Ada_Lovelace"
    assert example.context[35:39] == "1815"


def test_offsets_are_code_points_also_after_an_emoji(write: Write) -> None:
    (example,) = read_squad(write("a.json", squad(question(text="né", start=2), context="🎉 né en 1815")))
    assert example.answers == (("né", 2),)


def test_is_impossible_has_no_answers_even_if_some_are_written(write: Write) -> None:
    examples = read_squad(
        write(
            "a.json", squad(question(), question("q2", is_impossible=True), {**question("q3"), "answers": []})
        )
    )
    assert [len(example.answers) for example in examples] == [1, 0, 0]


def test_a_wrong_start_is_mended_where_the_answer_stands_nearby(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        (example,) = read_squad(write("a.json", squad(question(text="London", start=24))))
    assert example.answers == (("London", 25),)
    assert "1 answers with a wrong answer_start were mended" in caplog.text


def test_a_wrong_start_is_mended_where_the_answer_stands_only_once(write: Write) -> None:
    (example,) = read_squad(write("a.json", squad(question(text="1815", start=-1))))
    assert example.answers == (("1815", 35),)


def test_an_answer_that_stands_far_off_and_twice_is_not_guessed(write: Write) -> None:
    content = squad(question(text="London", start=500), *[question(f"g{n}") for n in range(20)])
    assert len(read_squad(write("a.json", content))) == 20


def test_a_question_whose_answer_is_nowhere_is_dropped_and_counted(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    content = squad(question("bad", text="Paris"), *[question(f"g{n}") for n in range(20)])
    with caplog.at_level(logging.WARNING):
        examples = read_squad(write("a.json", content))
    assert "bad" not in [example.id for example in examples]
    assert "1 questions were dropped, the first is bad" in caplog.text


def test_a_file_of_mostly_wrong_answers_is_refused_with_id_and_line(write: Write) -> None:
    with pytest.raises(
        DataError, match=r"a\.json:11: question bad: the answer 'Paris' is not in its context"
    ):
        read_squad(write("a.json", squad(question("bad", text="Paris"), question())))


def test_a_repeated_id_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="question id q1 occurs twice"):
        read_squad(write("a.json", squad(question(), question())))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"data": [\n{,}]}', r":2: is not json"),
        ("[]", 'must be an object with a list "data"'),
        ('{"data": [{"title": "x"}]}', r'data\[0\] has no list "paragraphs"'),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r'data\[0\].paragraphs\[0\] has no text "context"'),
        ('{"data": [{"paragraphs": [{"context": "x", "qas": [{}]}]}]}', 'has no "id"'),
        (squad({"id": "q", "question": "?", "answers": [{"text": "x"}]}), '"answers" must be a list'),
        ('{"data": []}', "has no questions"),
        ('{"data": ' + "[" * 100_000, "is json that is nested too deeply"),
        (f'{{"data": {"9" * 5000}}}', "has a whole number of more than 4,300 digits"),
        ("", "is empty"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(write: Write, content: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_squad(write("a.json", content))


HALF = "half \ud800"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("title", r'"title" of data\[0\] is not valid Unicode: it has half of a surrogate pair'),
        ("context", r'"context" of data\[0\].paragraphs\[0\] is not valid Unicode'),
        ("id", r'"id" of data\[0\].paragraphs\[0\].qas\[0\] is not valid Unicode'),
        ("question", "question q1: its text is not valid Unicode"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_place(write: Write, place: str, reason: str) -> None:
    asked = {**question(), **({place: HALF} if place in ("id", "question") else {})}
    content = json.loads(squad(asked))
    article = content["data"][0]
    if place == "title":
        article["title"] = HALF
    elif place == "context":
        article["paragraphs"][0]["context"] += HALF
    with pytest.raises(DataError, match=reason):
        read_squad(write("a.json", json.dumps(content)))


def test_all_problems_are_told_at_once_but_no_more_than_twenty(write: Write) -> None:
    broken = [{"id": f"q{n}", "question": "?", "answers": 3} for n in range(25)]
    with pytest.raises(DataError) as error:
        read_squad(write("a.json", squad(*broken)))
    assert "25 problems" in str(error.value)
    assert "question q19" in str(error.value)
    assert "question q20" not in str(error.value)
    assert "and 5 more" in str(error.value)


@pytest.mark.parametrize(
    ("name", "questions", "unanswerable"),
    [("dev-v1.1.json", 4868, 0), ("dev-v2.0.json", 5226, 2521), ("train-v1.1-12-articles.json", 4370, 0)],
)
def test_every_question_of_the_real_files_is_read(
    shared_data: Path, name: str, questions: int, unanswerable: int
) -> None:
    examples = read_squad(shared_data / "squad" / name)
    assert len(examples) == questions
    assert sum(not example.answers for example in examples) == unanswerable
    for example in examples:
        assert all(example.context[at : at + len(text)] == text for text, at in example.answers)


def test_cmrc_with_its_wrong_starts_is_read(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        examples = read_squad(shared_data / "zh" / "cmrc2018" / "train-small.json")
    assert len(examples) == 3219
    assert "7 answers with a wrong answer_start were mended; 193" in caplog.text


def test_json_lines_of_questions_with_their_contexts_are_read(write: Write) -> None:
    lines = [{**question("q1"), "context": CONTEXT}, {**question("q2"), "answers": [], "context": CONTEXT}]
    first, second = read_squad(write("a.jsonl", "\n".join(map(json.dumps, lines))))
    assert (first.answers, first.context, second.answers) == ((("1815", 35),), CONTEXT, ())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(question()), 'line 2: has no text "context"'),
        (json.dumps({"context": "a", "question": "b"}), 'line 2: has no "id"'),
        ("[]", 'line 2: has no text "context"'),
        ("{", "line 2"),
        ('{"context": "\\ud800", "id": "q2"}', "line 2"),
    ],
)
def test_a_broken_line_is_refused_with_its_number(write: Write, line: str, reason: str) -> None:
    whole = json.dumps({**question(), "context": CONTEXT})
    with pytest.raises(DataError) as caught:
        read_squad(write("a.jsonl", f"{whole}\n{line}\n"))
    assert reason in str(caught.value).replace("a.jsonl:2: ", "line 2: ")
