"""The ordinary cases of the demo models: sound in form, judged as they should be, their misses written in two places."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.demo import misses
from benchmarks.demo.cases import NOTHING, PATHS, Case, judged, read_cases, said
from benchmarks.demo.misses import BEGIN, END, Miss, read_tolerated, write_misses
from benchmarks.demo.scores import Scored, without_at_signs, word_counts
from bert.data.examples import WordsExample
from bert.metrics.squad import normalize_answer
from tests.support.documents import text_of

MODELS = tuple(PATHS)


def case(model: str, name: str) -> Case:
    return next(case for case in read_cases(model) if case.name == name)


@pytest.mark.parametrize("model", MODELS)
def test_each_model_has_a_hundred_cases_with_names_and_requests_of_their_own(model: str) -> None:
    cases = read_cases(model)
    assert len(cases) == 100
    assert len({case.name for case in cases}) == 100
    assert len({str(case.request) for case in cases}) == 100
    assert all(re.fullmatch(r"[a-z0-9-]+", case.name) for case in cases)


def test_half_of_the_opinions_are_positive() -> None:
    assert sum(case.wanted == "positive" for case in read_cases("sentiment")) == 50


def test_names_are_whole_words_of_their_text() -> None:
    for each in read_cases("ner"):
        (spans,) = each.right
        assert isinstance(spans, frozenset)
        for start, end, label in spans:
            text = each.request["text"]
            assert label in ("PER", "LOC", "ORG")
            assert re.fullmatch(r"\w.*\w", text[start:end])
            assert not re.match(r"\w", text[end:])
            assert not re.search(r"\w$", text[:start])


def test_a_quarter_of_the_questions_has_no_answer_and_the_others_have_it_in_the_paragraph() -> None:
    cases = read_cases("qa")
    assert sum(case.wanted == NOTHING for case in cases) == 25
    for each in cases:
        paragraph = normalize_answer(each.request["context"])
        assert all(answer is None or str(answer) in paragraph for answer in each.right), each.name


def test_entities_are_right_only_with_exact_offsets_and_labels() -> None:
    siemens = case("ner", "siemens-emoji")
    found = {"text": "Siemens", "start": 0, "end": 7, "label": "ORG", "score": 0.9}
    assert judged("ner", {"entities": [found]}) in siemens.right
    for wrong in (
        [],
        [found | {"end": 9}],
        [found | {"label": "PER"}],
        [found, found | {"start": 8, "end": 9}],
    ):
        assert judged("ner", {"entities": wrong}) not in siemens.right


def test_answers_are_compared_as_squad_does_and_none_is_an_answer() -> None:
    faust, death = case("qa", "goethe-wrote-faust"), case("qa", "goethe-death")
    assert judged("qa", {"answer": "goethe."}) in faust.right
    assert judged("qa", {"answer": "Einstein"}) not in faust.right
    assert judged("qa", {"answer": None}) not in faust.right
    assert judged("qa", {"answer": None}) in death.right
    assert said("qa", death, {"answer": None, "score": 0.5}) == "nothing (0.50)"


def test_the_nearer_text_has_to_be_ranked_first() -> None:
    cat = case("similarity", "cat-and-mouse")
    best = {"index": 0, "score": 0.7}
    assert judged("similarity", best) not in cat.right
    assert said("similarity", cat, best) == "The mouse of my computer is broken. (0.70)"
    assert judged("similarity", {"index": 1, "score": 0.7}) in cat.right


def test_misses_are_written_into_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, names = tmp_path / "README.md", tmp_path / "tolerated.json"
    page.write_text(f"# Before\n\n{BEGIN}old\n{END}\nAfter.\n")
    monkeypatch.setattr(misses, "README", page)
    monkeypatch.setattr(misses, "TOLERATED", names)
    miss = Miss(case("qa", "goethe-wrote-faust"), "Ein|stein (0.69)")
    other = Miss(case("qa", "goethe-death"), "Ulm (0.50)")
    for _ in range(2):
        write_misses(
            {("sentiment", "int8"): [], ("qa", "int8"): [miss], ("qa", "fp32"): [other, miss]}, "a machine"
        )
    text = page.read_text()
    assert text.startswith(
        "# Before\n\n<!-- misses: begin -->\n\na machine\n\n| model | precision | right of 100 |"
    )
    assert text.endswith("<!-- misses: end -->\n\nAfter.\n")
    assert "old" not in text
    assert "| sentiment | int8 | 100 |\n| qa | int8 | 99 |\n| qa | fp32 | 98 |" in text
    assert text.count("Who wrote Faust?") == 1
    assert "| goethe-wrote-faust | Who wrote Faust? | Goethe | Ein&#124;stein (0.69) |" in text
    assert read_tolerated() == {"sentiment": [], "qa": ["goethe-wrote-faust", "goethe-death"]}


@pytest.mark.parametrize("model", MODELS)
def test_tolerated_misses_are_cases_and_the_page_lists_them(model: str) -> None:
    """The two places were written together."""
    tolerated = read_tolerated()[model]
    assert set(tolerated) <= {case.name for case in read_cases(model)}
    page = text_of(misses.README).partition(BEGIN)[2].partition(END)[0]
    table = page.partition(f"| {model}: case |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([a-z0-9-]+) \|", table, re.MULTILINE) == tolerated


def test_an_interval_holds_the_score_and_narrows_with_the_examples() -> None:
    rng = np.random.default_rng(1)

    def width(count: int) -> float:
        scored = Scored((rng.random(count) < 0.8).astype(float), lambda values: float(values.mean()))
        low, high = scored.interval()
        assert low <= scored.score(scored.values) <= high
        return high - low

    assert width(2000) < width(100) / 2


def test_entities_are_compared_by_the_words_of_the_file() -> None:
    sentence = WordsExample(("Ada", "of", "Acme", "Inc."), ("B-PER", "O", "B-ORG", "I-ORG"), "1")
    found = [{"label": "PER", "start": 0, "end": 3}, {"label": "ORG", "start": 7, "end": 16}]
    assert word_counts(sentence, found) == (2, 2, 2)
    assert word_counts(sentence, [{"label": "ORG", "start": 7, "end": 11}]) == (0, 2, 1)


def test_at_signs_lose_their_tags() -> None:
    tweet = WordsExample(("@", "ada", "in", "Paris"), ("B-PER", "B-PER", "O", "B-LOC"), "1")
    assert without_at_signs(tweet).labels == ("O", "B-PER", "O", "B-LOC")
