"""What models answer, in metrics: labels, scores, lengths, cut texts, by model and version."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.live import Live

TEXTS = ["a film", "the film was long", "angela merkel met in munich"]


def by_label(live: Live, model: str) -> dict[str, float]:
    """Return the results counted so far, by label."""
    live.settled_metric("bert_results_total")
    return {
        sample.labels["label"]: sample.value
        for metric in live.service.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "bert_results_total" and sample.labels["model"] == model
    }


def counted(live: Live, model: str) -> dict[str, float]:
    """Return all sums that a request may change."""
    names = ("result_score_count", "result_score_sum", "text_tokens_count", "text_tokens_sum")
    found = {name: live.settled_metric(f"bert_{name}", model=model, version="1") for name in names}
    return found | {"cut": live.metric("bert_truncated_texts_total", model=model, version="1")}


def change(live: Live, model: str, path: str, body: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Ask; return the sums that have grown, by how much, and the answer."""
    before = counted(live, model) | {f"label {name}": n for name, n in by_label(live, model).items()}
    reply = live.post(path, body | {"model": model})
    assert reply.status == 200
    after = counted(live, model) | {f"label {name}": n for name, n in by_label(live, model).items()}
    grown = {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}
    return grown, reply.json


def labels_of(answers: list[str]) -> dict[str, float]:
    return {f"label {label}": answers.count(label) for label in answers}


def of_classes(results: list[Any]) -> list[tuple[str, float]]:
    return [(each["label"], each["score"]) for each in results]


def of_entities(results: list[Any]) -> list[tuple[str, float]]:
    return [(entity["label"], entity["score"]) for each in results for entity in each["entities"]]


def of_answers(results: list[Any]) -> list[tuple[str, float]]:
    return [("no_answer" if each["answer"] is None else "answer", each["score"]) for each in results]


def of_choices(results: list[Any]) -> list[tuple[str, float]]:
    return [("choice", each["score"]) for each in results]


@pytest.mark.parametrize(
    ("model", "path", "body", "outcomes"),
    [
        ("mood", "/classify", {"text": TEXTS}, of_classes),
        ("topics", "/classify", {"text": TEXTS}, of_classes),
        ("names", "/ner", {"text": TEXTS}, of_entities),
        ("reader", "/qa", {"question": "who met", "context": TEXTS}, of_answers),
        ("stories", "/multiple-choice", {"prompt": "a film", "choices": TEXTS}, of_choices),
    ],
)
def test_labels_and_scores_of_results_are_counted(
    live: Live,
    model: str,
    path: str,
    body: dict[str, Any],
    outcomes: Callable[[list[Any]], list[tuple[str, float]]],
) -> None:
    grown, answer = change(live, model, path, body)
    found = outcomes(answer["results"])
    assert {name: n for name, n in grown.items() if name.startswith("label ")} == labels_of(
        [label for label, _ in found]
    )
    assert grown["result_score_count"] == len(found)
    assert grown["result_score_sum"] == pytest.approx(sum(score for _, score in found), abs=1e-4)
    assert (grown["text_tokens_count"], grown["text_tokens_sum"]) == (3, answer["usage"]["tokens"])


def test_a_text_in_windows_counts_once_and_cut_ones_are_counted(live: Live) -> None:
    grown, answer = change(live, "names", "/ner", {"text": "a film " * 40})
    assert (grown["text_tokens_count"], grown["text_tokens_sum"]) == (1, answer["usage"]["tokens"])
    grown, _ = change(live, "mood", "/classify", {"text": ["a film", "a film " * 40], "truncate": True})
    assert (grown["cut"], grown["text_tokens_count"]) == (1, 2)


@pytest.mark.parametrize(
    ("model", "more"), [("stars", {}), ("mood", {"temperature": 2.0}), ("meaning", None)]
)
def test_numbers_and_scores_that_a_request_has_changed_are_not_counted(
    live: Live, model: str, more: dict[str, Any] | None
) -> None:
    path = "/embed" if more is None else "/classify"
    grown, answer = change(live, model, path, {"text": "a film", **(more or {})})
    assert grown == {"text_tokens_count": 1, "text_tokens_sum": answer["usage"]["tokens"]}


def test_a_value_on_a_bound_is_counted_below_it(live: Live) -> None:
    """As by prometheus_client itself: `le` is "less or equal"."""
    metrics = live.service.metrics
    metrics.observe_texts("on-a-bound", "1", [8, 9], 0)
    tokens = {"model": "on-a-bound", "version": "1"}
    assert live.metric("bert_text_tokens_bucket", **tokens, le="8.0") == 1
    assert live.metric("bert_text_tokens_bucket", **tokens, le="16.0") == 2
