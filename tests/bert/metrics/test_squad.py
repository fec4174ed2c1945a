"""The SQuAD scores against the official scripts' rules, written out once more the slow way."""

import math
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.metrics.squad import AnswerScores, best_null_threshold, normalize_answer, squad_em_f1, squad_v2

Golds = list[list[str]]
WORDS = st.sampled_from(["the", "a", "An", "cat", "Dog", "dog.", "U.S.", "naïve", "'s", "(x)", "—", ""])
TEXTS = st.lists(WORDS, max_size=4).map(" ".join)
# Few values, so that many questions share a score; some fall on the usual thresholds.
MARGINS = st.sampled_from([-1.5, 0.0, 0.5, 1.0]) | st.floats(-20, 20)


def plain(text: str) -> list[str]:
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def overlap(gold: list[str], predicted: list[str]) -> float:
    left, same = list(gold), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            same += 1
    return 2 / (len(predicted) / same + len(gold) / same) if same else 0.0


def score_v2(golds: list[str], prediction: str) -> tuple[float, float]:
    """Score one question of SQuAD 2.0."""
    candidates = [plain(gold) for gold in golds if plain(gold)] or [[]]
    words = plain(prediction)
    same = [float(gold == words) for gold in candidates]
    f1 = [overlap(gold, words) if gold and words else float(gold == words) for gold in candidates]
    return max(same), max(f1)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@st.composite
def answered(draw: st.DrawFn) -> tuple[Golds, list[str], list[float]]:
    """Draw questions, some without gold answers, their predictions and their null margins."""
    n = draw(st.integers(1, 12))
    golds = draw(st.lists(st.lists(TEXTS, max_size=3), min_size=n, max_size=n))
    texts = draw(st.lists(TEXTS, min_size=n, max_size=n))
    return golds, texts, draw(st.lists(MARGINS, min_size=n, max_size=n))


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), TEXTS), min_size=1, max_size=8))
def test_version_1_takes_the_best_gold_answer(questions: list[tuple[list[str], str]]) -> None:
    golds, predictions = [list(column) for column in zip(*questions, strict=True)]
    found = squad_em_f1(golds, predictions)
    exact = [max(float(plain(g) == plain(text)) for g in gold) for gold, text in questions]
    f1 = [max(overlap(plain(g), plain(text)) for g in gold) for gold, text in questions]
    assert found.exact == pytest.approx(mean(exact))
    assert found.f1 == pytest.approx(mean(f1))
    assert found.total == len(questions)


@given(answered(), st.sampled_from([-1.5, 0.0, 0.5, 1.0]))
def test_version_2_follows_the_official_script(
    data: tuple[Golds, list[str], list[float]], threshold: float
) -> None:
    golds, texts, margins = data
    given = ["" if margin > threshold else text for margin, text in zip(margins, texts, strict=True)]
    found = squad_v2(golds, given).to_dict()
    scored = [score_v2(gold, text) for gold, text in zip(golds, given, strict=True)]
    parts = {
        "": scored,
        "HasAns_": [s for s, gold in zip(scored, golds, strict=True) if gold],
        "NoAns_": [s for s, gold in zip(scored, golds, strict=True) if not gold],
    }
    for prefix, part in parts.items():
        assert (f"{prefix}total" in found) == bool(part)
        if part:
            assert found[f"{prefix}total"] == len(part)
            assert found[f"{prefix}exact"] == pytest.approx(mean([exact for exact, _ in part]))
            assert found[f"{prefix}f1"] == pytest.approx(mean([f1 for _, f1 in part]))


@given(answered())
def test_no_threshold_beats_the_one_to_deploy(data: tuple[Golds, list[str], list[float]]) -> None:
    golds, texts, margins = data
    found = best_null_threshold(golds, texts, margins)

    def f1_at(threshold: float) -> float:
        kept = ["" if margin > threshold else text for margin, text in zip(margins, texts, strict=True)]
        return squad_v2(golds, kept).f1

    assert f1_at(found.threshold) == pytest.approx(found.f1)
    for threshold in [-math.inf, *margins]:
        assert f1_at(threshold) <= found.f1 + 1e-9


def test_no_answers_at_all_lead_to_a_threshold_that_answers_nothing() -> None:
    found = best_null_threshold([[], []], ["x", "y"], [-7.0, -9.0])
    assert found.threshold < -9.0
    assert found.f1 == 1.0


def test_an_empty_context_does_not_make_the_threshold_infinite() -> None:
    found = best_null_threshold([["cat"], []], ["cat", ""], [2.0, math.inf])
    assert (found.threshold, found.f1) == (3.0, 1.0)
    assert best_null_threshold([[]], [""], [math.inf]).threshold == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Denver\tBroncos!", "denver broncos"),
        ("an apple a day", "apple day"),
        ("$1,000", "1000"),
        ("theatre", "theatre"),
        ("«the»", "« »"),  # only ASCII punctuation goes, as in the official script
        ("", ""),
    ],
)
def test_answers_are_compared_without_case_articles_and_punctuation(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_the_two_versions_differ_where_nothing_is_left_of_an_answer() -> None:
    assert squad_em_f1([["The"]], ["a"]) == AnswerScores(exact=1.0, f1=0.0, total=1)
    assert squad_v2([["The"]], ["a"]).f1 == 1.0


def test_an_unanswerable_question_wants_the_empty_answer() -> None:
    found = squad_v2([[], [], ["cat"]], ["", "dog", "the cat"])
    assert found.has_answer == AnswerScores(1.0, 1.0, 1)
    assert found.no_answer == AnswerScores(0.5, 0.5, 2)
    assert found.f1 == pytest.approx(2 / 3)


def test_scores_lie_between_0_and_1() -> None:
    assert squad_em_f1([["cat"]], ["cat"]) == AnswerScores(1.0, 1.0, 1)


def test_version_1_refuses_a_question_without_gold() -> None:
    with pytest.raises(ValueError, match="question 1 has no gold answer"):
        squad_em_f1([["x"], []], ["x", ""])


@pytest.mark.parametrize("score", [squad_em_f1, squad_v2])
def test_predictions_must_match_the_questions(score: object) -> None:
    assert callable(score)
    with pytest.raises(ValueError, match="1 questions but 2 predictions"):
        score([["x"]], ["x", "y"])
    with pytest.raises(ValueError, match="no questions"):
        score([], [])


def test_null_margins_must_be_numbers_one_a_question() -> None:
    with pytest.raises(ValueError, match=r"must be \(1,\) without nan"):
        best_null_threshold([["x"]], ["x"], [math.nan])
