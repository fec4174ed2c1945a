"""Options of /classify over a real socket: threshold, temperature, and windows over long texts."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.tasks.spec import TaskSpec
from tests.support.live import Live, serving
from tests.support.tiny import MAX_TOKENS, SPECS, WORDS, write_tiny_bundle

ROOM = MAX_TOKENS - 2
"""Tokens of a text in a window, beside [CLS] and [SEP]."""
STRIDE = MAX_TOKENS // 8
MODELS = ("mood", "topics", "stars")
LONG = " ".join(WORDS[(7 * n * n + n) % len(WORDS)] for n in range(200))
"""Each word is one token."""


def results(live: Live, text: object, **options: Any) -> list[dict[str, Any]]:
    reply = live.post("/classify", {"text": text, **options})
    assert reply.status == 200, reply.body
    return list(reply.json["results"])


def refusal(live: Live, **body: Any) -> dict[str, str]:
    """Return the fields at fault with what is wrong with them."""
    reply = live.post("/classify", {"text": "a film", **body})
    assert reply.status == 422, reply.body
    return {error["field"]: error["message"] for error in reply.json["errors"]}


def scores(result: dict[str, Any]) -> dict[str, float]:
    return {each["label"]: each["score"] for each in result["scores"]}


@pytest.mark.parametrize("model", ["mood", "topics"])
def test_a_threshold_leaves_out_labels_and_keeps_the_best(live: Live, model: str) -> None:
    texts = ["a warm film", "dull", "munich was long"]
    plain = results(live, texts, model=model)
    for threshold in (0, 0.3, 0.5, 0.95, 1):
        for top_k in (None, 1):
            found = results(live, texts, model=model, threshold=threshold, top_k=top_k)
            for one, other in zip(plain, found, strict=True):
                kept = [each for each in one["scores"] if each["score"] >= threshold][:top_k]
                assert other == one | {"scores": kept}
    assert any(not each["scores"] for each in results(live, texts, model=model, threshold=1))


def test_a_temperature_divides_the_logits(live: Live) -> None:
    (plain,) = results(live, "a warm film", model="topics")
    (cooled,) = results(live, "a warm film", model="topics", temperature=2.5)
    for label, score in scores(plain).items():
        logit = math.log(score / (1 - score))
        assert scores(cooled)[label] == pytest.approx(1 / (1 + math.exp(-logit / 2.5)), abs=1e-5)
    (plain,) = results(live, "a warm film")
    (cooled,) = results(live, "a warm film", temperature=0.4)
    powers = {label: score ** (1 / 0.4) for label, score in scores(plain).items()}
    total = sum(powers.values())
    assert scores(cooled) == pytest.approx(
        {label: power / total for label, power in powers.items()}, abs=1e-5
    )


def test_a_temperature_of_one_is_no_temperature(live: Live) -> None:
    for model in ("mood", "topics"):
        body = {"text": ["a warm film", "dull"], "model": model}
        assert live.post("/classify", body).body == live.post("/classify", body | {"temperature": 1}).body
        assert live.post("/classify", body).body == live.post("/classify", body | {"temperature": None}).body


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("threshold", [-0.1, 1.1, True, "0.5", {}, float("nan"), float("inf")]),
        ("temperature", [0, -1, 100.5, True, "1", {}, float("nan"), float("inf"), 10**400]),
        ("windows", ["min", "", 1, True, {}]),
    ],
)
def test_other_values_are_refused_by_name(live: Live, name: str, wrong: list[Any]) -> None:
    for value in wrong:
        message = refusal(live, **{name: value})[name]
        assert "max" in message or "number" in message
        if isinstance(value, float):
            assert f"not {value}" in message
        if name == "windows" and isinstance(value, str):
            assert f"not {value!r}" in message


def test_models_that_give_numbers_refuse_both(live: Live) -> None:
    for name in ("threshold", "temperature"):
        message = refusal(live, model="stars", **{name: 1})[name]
        assert "is 1" in message and "'stars' gives numbers" in message


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Cross-encoders, and a model with a stride of its own."""
    folder: Path = tmp_path_factory.mktemp("crossed")
    ranks = TaskSpec("classification", ("score",), "regression", activation="sigmoid", max_tokens=16)
    write_tiny_bundle(folder / "ranks", "ranks", ranks, 3)
    write_tiny_bundle(folder / "numbers", "numbers", replace(ranks, activation="identity"), 3)
    write_tiny_bundle(folder / "strides", "strides", replace(SPECS["topics"], stride=11), 4)
    with serving(bundles=[folder], max_queue_tokens=2**17) as running:
        yield running


def test_what_counts_is_whether_scores_are_probabilities(crossed: Live) -> None:
    assert results(crossed, "a film", model="ranks", threshold=0.5, temperature=2)
    assert refusal(crossed, model="numbers", threshold=0.5)


def by_hand(live: Live, text: str, model: str, merge: str, stride: int = STRIDE) -> dict[str, float]:
    """Score each window of words as a text of its own."""
    words = text.split()
    assert len(
        live.post("/tokenize", {"text": text, "model": model}).json["results"][0]["tokens"]
    ) == 2 + len(words)
    starts = range(0, max(1, len(words) - stride), ROOM - stride)
    windows = [words[start : start + ROOM] for start in starts]
    parts = [scores(each) for each in results(live, [" ".join(each) for each in windows], model=model)]
    weights = [len(each) for each in windows]
    return {
        label: max(part[label] for part in parts)
        if merge == "max"
        else float(np.average([part[label] for part in parts], weights=weights))
        for label in parts[0]
    }


@pytest.mark.parametrize("merge", ["max", "mean"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("words", [ROOM - 1, ROOM, ROOM + 1, 2 * ROOM - STRIDE, 2 * ROOM - STRIDE + 1, 200])
def test_a_long_text_has_the_scores_of_its_windows(live: Live, model: str, merge: str, words: int) -> None:
    text = " ".join(LONG.split()[:words])
    (found,) = results(live, text, model=model, windows=merge)
    expected = by_hand(live, text, model, merge)
    assert scores(found) == pytest.approx(expected, abs=1e-5)
    ordered = sorted(expected.values(), reverse=True)
    assert [each["score"] for each in found["scores"]] == pytest.approx(ordered, abs=1e-5)
    assert found["label"] == found["scores"][0]["label"] and found["score"] == found["scores"][0]["score"]
    assert found["truncated"] is False


def test_a_models_own_stride_is_kept(crossed: Live) -> None:
    for merge in ("max", "mean"):
        (found,) = results(crossed, LONG, model="strides", windows=merge)
        assert scores(found) == pytest.approx(by_hand(crossed, LONG, "strides", merge, 11), abs=1e-5)


def test_texts_that_fit_have_the_answer_that_they_have_without(live: Live) -> None:
    for text in ("", "a warm film", "🙂 film 👩‍👩‍👧 munich", ["dull", "e\u0301te\u0301", " "], LONG[:60]):
        for model in MODELS:
            body = {"text": text, "model": model}
            for merge in ("max", "mean"):
                assert (
                    live.post("/classify", body | {"windows": merge}).body
                    == live.post("/classify", body).body
                )


def test_neighbours_in_a_list_change_nothing(live: Live) -> None:
    texts = ["dull", LONG, "", "🙂 " * 50, LONG[:300], "🙂👩‍👩‍👧\u0301 film " * 40]
    for merge in ("max", "mean"):
        together = results(live, texts, model="topics", windows=merge)
        for text, result in zip(texts, together, strict=True):
            (alone,) = results(live, text, model="topics", windows=merge)
            assert scores(alone) == pytest.approx(scores(result), abs=1e-5)


def test_windows_go_with_the_other_options(live: Live) -> None:
    (whole,) = results(live, LONG, model="topics", windows="max")
    second = whole["scores"][1]["score"]
    (found,) = results(live, LONG, model="topics", windows="max", threshold=second, top_k=3)
    assert found == whole | {"scores": whole["scores"][:2]}
    (found,) = results(live, LONG, model="topics", windows="max", threshold=second, top_k=1)
    assert found == whole | {"scores": whole["scores"][:1]}
    (hot,) = results(live, LONG, model="topics", windows="max", temperature=50)
    assert all(abs(score - 0.5) < abs(scores(whole)[label] - 0.5) for label, score in scores(hot).items())


def test_the_tokens_of_all_windows_are_counted(live: Live) -> None:
    reply = live.post("/classify", {"text": ["dull", LONG], "windows": "mean"})
    more = math.ceil((200 - ROOM) / (ROOM - STRIDE))
    assert reply.json["usage"]["tokens"] == 3 + 200 + more * STRIDE + 2 * (1 + more)


def test_a_text_of_100_000_characters_is_read_to_its_end(live: Live) -> None:
    text = "a film was dull " * 6250
    assert len(text) == 100_000
    reply = live.post("/classify", {"text": text, "windows": "max", "model": "topics"})
    assert reply.status == 200, reply.body
    assert reply.json["usage"]["tokens"] > 25_000
    other = live.post("/classify", {"text": text + LONG, "windows": "max", "model": "topics"})
    assert other.json["results"] != reply.json["results"]


def test_a_request_that_could_never_be_queued_is_refused(live: Live) -> None:
    for text in ("a " * 150_000, ["a " * 40_000] * 4):
        reply = live.post("/classify", {"text": text, "windows": "mean"})
        assert (reply.status, reply.json["type"]) == (413, "urn:bert-serve:request-too-large")
    fits = "a " * 115_000  # but not with the overlap
    assert live.post("/classify", {"text": fits, "windows": "mean"}).status == 413


def test_windows_go_neither_with_pairs_nor_with_truncate(live: Live) -> None:
    assert "windows" in refusal(live, model="entailment", text_pair="dull", windows="max")["text_pair"]
    assert "truncate" in refusal(live, truncate=True, windows="max")["windows"]
    assert results(live, LONG, truncate=False, windows="max")
