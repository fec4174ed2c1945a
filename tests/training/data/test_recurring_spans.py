"""Questions that are made of plain text."""

from collections.abc import Iterator

import pytest

from training.data.recurring_spans import A_PASSAGE, recurring_questions

FILLER = " ".join(
    f"Beside the {a} stood a {b} that nobody had painted." for a, b in zip("uvwxyz", "klmnop", strict=True)
)
TEXT = (
    "Anna Schmidt opened the first bakery of Ulm in the spring. "
    f"{FILLER} "
    "Many years later the town thanked Anna Schmidt with a fountain on the market."
)


def questions(text: str = TEXT, limit: int | None = None, seed: int = 0) -> list[tuple[str, str, str]]:
    found = recurring_questions([text], limit, seed)
    return [(each.question, each.context, each.answers[0][0]) for each in found]


def test_a_span_of_two_sentences_is_asked_for() -> None:
    found = questions()
    assert {answer for _, _, answer in found} == {"Anna Schmidt"}
    asked = {question for question, _, _ in found}
    assert all("Anna" not in question and question.endswith("?") for question in asked)
    assert any("fountain" in question for question in asked) or any(
        "bakery" in question for question in asked
    )


def test_answers_lie_where_they_say_and_once() -> None:
    for example in recurring_questions([TEXT, TEXT.replace("Anna Schmidt", "the 1954 mill")], None, 1):
        ((text, start),) = example.answers
        assert example.context[start : start + len(text)] == text
        assert example.context.casefold().count(text.casefold()) == 1


def test_the_sentence_of_the_question_is_not_in_its_passage() -> None:
    for question, context, _ in questions():
        assert ("bakery" in question) != ("bakery" in context)


def test_a_seed_gives_the_same_questions_and_a_limit_fewer() -> None:
    assert questions(seed=3) == questions(seed=3)
    assert len(questions(limit=1)) == 1


@pytest.mark.parametrize("text", ["", "Short.", "one two three " * 10, FILLER])
def test_a_text_without_a_recurring_span_gives_none(text: str) -> None:
    assert recurring_questions([text], None, 0) == []


def test_a_passage_gives_a_few() -> None:
    names = [
        "Ada Lovelace",
        "Alan Turing",
        "Grace Hopper",
        "Konrad Zuse",
        "Edsger Dijkstra",
        "Barbara Liskov",
    ]

    def sentences() -> Iterator[str]:
        for name in names:
            yield f"In those days {name} had seen machines grow faster from one winter to another."
        for name in names:
            yield f"Nobody there would ever have believed what {name} wrote down on a page."

    assert 1 <= len(recurring_questions([" ".join(sentences())], None, 0)) <= A_PASSAGE
