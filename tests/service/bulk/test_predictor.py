from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import BundleError, ConfigError
from bert.tasks.spec import TaskSpec
from service.bulk.predictor import Predictor
from tests.support import open_classification, tiny
from tests.support.token_vectors import WIDTH, write_tokens_bundle

TEXTS = [
    "angela merkel met in munich",
    "the film was warm and funny",
    "dull",
    "who is it and where is it",
    "a",
]
LONG = "the film was dull " * 20


@pytest.fixture
def opened(bundles: Path) -> Iterator[Any]:
    predictors = list[Predictor]()

    def opened(name: str, **options: Any) -> Predictor:
        predictors.append(Predictor(bundles / name, **options))
        return predictors[-1]

    yield opened
    for predictor in predictors:
        predictor.close()


def test_each_row_gets_the_columns_of_its_task(opened: Any) -> None:
    rows = [{"text": text, "text_pair": "a film", "id": n} for n, text in enumerate(TEXTS)]
    expected = {
        "mood": {"label", "score"},
        "entailment": {"label", "score"},
        "topics": {"label", "score", "scores"},
        "names": {"entities"},
        "meaning": {"score"},
    }
    for name, columns in expected.items():
        found = opened(name).predict(rows)
        assert not any(each.is_bad for each in found), name
        assert all(set(each.columns) == columns for each in found), name


def test_one_text_is_embedded(opened: Any) -> None:
    found = opened("meaning").predict([{"text": text} for text in TEXTS])
    assert np.allclose([np.linalg.norm(each.columns["embedding"]) for each in found], 1)


def test_tokens_get_vectors_in_rows_too(opened: Any, bundles: Path, tmp_path: Path) -> None:
    write_tokens_bundle(tmp_path / "tokens")
    for side, counts in (("query", [12] * 5), ("document", [8, 9, 4, 10, 4])):
        found = opened(str(tmp_path / "tokens"), side=side).predict([{"text": text} for text in TEXTS])
        assert all(each.columns.keys() == {"tokens"} for each in found)
        assert [np.shape(each.columns["tokens"]) for each in found] == [(n, WIDTH) for n in counts]


def test_questions_choices_and_masks_are_answered(opened: Any) -> None:
    answer = opened("reader").predict([{"question": "who is it", "context": "angela met merkel in munich"}])
    assert set(answer[0].columns) == {"answer", "score", "start", "end", "no_answer_score"}
    rows = [
        {"prompt": "the film was", "choices": choices} for choices in (["warm", "dull"], '["long", "funny"]')
    ]
    chosen = opened("stories").predict(rows)
    assert chosen[0].columns["choice"] in ("warm", "dull")
    assert chosen[1].columns["choice"] in ("long", "funny")
    masks = opened("gaps", top_k=2).predict([{"text": "the [MASK] was [MASK]"}])[0].columns["masks"]
    assert [len(mask["candidates"]) for mask in masks] == [2, 2]


def test_a_bad_row_has_a_reason_and_spoils_no_other(opened: Any) -> None:
    bad: list[dict[str, object]] = [{}, {"text": None}, {"text": 3}, {"text": "\ud800"}, {"text": LONG}]
    rows = [row for each in bad for row in ({"text": "dull"}, each)]
    found = opened("mood").predict(rows)
    assert [each.is_bad for each in found] == [False, True] * len(bad)
    assert [each.reason for each in found[1::2]] == [
        "text: is missing",
        "text: is null",
        "text: is a number instead of a text",
        "text: is not valid Unicode: it has half of a surrogate pair",
        "text: the text has 82 tokens and the model reads at most 32",
    ]
    assert len({each.columns["score"] for each in found[::2]}) == 1


def test_any_number_of_rows_may_be_bad(opened: Any) -> None:
    rows = [{"text": LONG if n % 3 else "dull"} for n in range(300)]
    assert [each.is_bad for each in opened("mood").predict(rows)] == [bool(n % 3) for n in range(300)]


def test_a_question_that_is_refused_without_a_place_is_found_by_halves(opened: Any) -> None:
    rows = (
        [{"text": "the [MASK]"}] * 9 + [{"text": "[MASK] " * 20 + "x" * 2**20}] + [{"text": "a [MASK]"}] * 9
    )
    found = opened("gaps", top_k=100).predict(rows)
    assert [n for n, each in enumerate(found) if each.is_bad] == [9]
    assert "and one may take 33554432: ask for fewer" in found[9].reason
    assert "max_response_bytes" not in found[9].reason  # a bulk run has no such setting


def test_long_texts_are_cut_where_that_is_asked_for(opened: Any) -> None:
    found = opened("mood", truncate=True).predict([{"text": LONG}, {"text": "dull"}])
    assert [each.columns["truncated"] for each in found] == [True, False]


def test_columns_may_have_other_names(opened: Any) -> None:
    mood = opened("mood", columns={"text": "review"}).predict(
        [{"review": "dull", "text": 1}, {"text": "dull"}]
    )
    assert not mood[0].is_bad
    assert mood[1].reason == "review: is missing"
    glue = opened("entailment").predict([{"sentence1": "dull", "sentence2": "a film"}])
    assert not glue[0].is_bad


def test_wrong_options_are_refused_before_there_is_a_row(opened: Any, bundles: Path) -> None:
    with pytest.raises(ConfigError, match="'names' is for ner, which has no option top_k"):
        opened("names", top_k=3)
    with pytest.raises(ConfigError, match="field 'texts'"):
        opened("mood", columns={"texts": "x"})
    with pytest.raises(BundleError, match="holds several bundles"):
        Predictor(bundles)


def test_options_that_a_model_cannot_have_are_told_once(opened: Any) -> None:
    cases: dict[tuple[str, str, Any], str] = {
        ("stars", "threshold", 0.5): "gives numbers, not probabilities",
        ("meaning", "dimensions", 99): "ask for 1 to 32",
        ("meaning", "prompt_name", "query"): "has no prompt 'query'",
        ("names", "labels", ("FISH",)): "has no entities of type 'FISH'",
        ("names", "left_out", ()): "is empty; name one of symbols, handles, punctuation",
    }
    for (name, option, value), reason in cases.items():
        with pytest.raises(ConfigError, match=reason):
            opened(name, **{option: value}).predict([{"text": "dull"}] * 3)


def test_each_option_reaches_its_task(opened: Any) -> None:
    row = [{"text": "the film was dull"}]
    assert opened("topics", threshold=1.0).predict(row)[0].columns["scores"] == []
    cold, warm = (opened("mood", temperature=t).predict(row)[0].columns["score"] for t in (1.0, 50.0))
    assert abs(warm - 0.5) < abs(cold - 0.5)
    assert not opened("mood", windows="mean").predict([{"text": LONG}])[0].is_bad
    assert len(opened("meaning", dimensions=8).predict(row)[0].columns["embedding"]) == 8
    found = opened("names", labels=["PER"], min_score=0.2, aggregation="average").predict(row)
    assert all(each["label"] == "PER" and each["score"] >= 0.2 for each in found[0].columns["entities"])
    asked = [{"question": "who is it", "context": "angela met merkel in munich"}]
    assert opened("reader", no_answer_threshold=1.0).predict(asked)[0].columns["answer"] is not None
    assert opened("reader", no_answer_threshold=0.0).predict(asked)[0].columns["answer"] is None


def test_a_model_of_inference_takes_labels(tmp_path: Path) -> None:
    spec = TaskSpec("classification", ("entailment", "contradiction"), pair=True, max_tokens=tiny.MAX_TOKENS)
    tiny.write_tiny_bundle(tmp_path / "nli", "nli", spec, 7)
    rows = [{"text": "a film"}, {"text": "munich"}]
    with pytest.raises(ConfigError, match="labels: has a list for each text, and here one list holds"):
        Predictor(tmp_path / "nli", labels=[["warm", "dull"]])
    with Predictor(tmp_path / "nli", labels=["warm", "dull"]) as opened:
        found = [each.columns for each in opened.predict(rows)]
    assert all(each.keys() == {"label", "score"} and each["label"] in ("warm", "dull") for each in found)
    with Predictor(
        tmp_path / "nli", labels=["warm", "dull"], multi_label=True, template="It is {}"
    ) as opened:
        assert [label["label"] for label in opened.predict(rows)[0].columns["scores"]] != []


def test_a_model_that_judges_all_labels_in_one_run_takes_labels(tmp_path: Path) -> None:
    spec, pieces, tokenizer = (
        open_classification.SPEC,
        open_classification.PIECES,
        open_classification.tokenizer_json(),
    )
    tiny.write_tiny_bundle(tmp_path / "m", "m", spec, 3, vocab_size=pieces, tokenizer_json=tokenizer)
    with Predictor(tmp_path / "m", labels=["warm", "dull"], multi_label=True) as opened:
        rows = [
            each.columns["scores"] for each in opened.predict([{"text": "the film was warm"}, {"text": "a"}])
        ]
    assert [{label["label"] for label in row} for row in rows] == [{"warm", "dull"}] * 2
