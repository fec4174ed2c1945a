"""The same text alone, first, last and in the middle of a batch, with short and long neighbours: the same answer.

Within 1e-5 in float32; in 8 bits the same label and 1e-3. Through the whole service, so with its packing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.client import Client, Result
from tests.support.live import PATIENT, Live, serving
from tests.support.workshop import ENDPOINTS, Workshop, has_adapter, shipped_texts

pytestmark = pytest.mark.slow

CLOSE = {"fp32": 1e-5, "int8": 1e-3}
TINY = {"sentiment": "classification", "ner": "ner", "qa": "qa"}
SHORT = ["Yes.", "Dull.", "Thank you, Anna."]
LONG = [
    "The committee met in Geneva on Friday and heard that the bridge over the river would cost more than planned. "
    * 4,
    "Anna Lindqvist moved from Oslo to Buenos Aires in 1998, and nobody there had heard of skis. " * 6,
]
QUESTION = "Where did Anna Lindqvist move to?"
BATCHES: dict[str, Callable[[str], list[str]]] = {
    "first among short": lambda text: [text, *SHORT],
    "last among short": lambda text: [*SHORT, text],
    "first among long": lambda text: [text, *LONG],
    "last among long": lambda text: [*LONG, text],
    "in the middle": lambda text: [SHORT[0], LONG[1], text, LONG[0], *SHORT],
    "among its like": lambda text: [text[::-1], text, text.upper(), text, text[: len(text) // 2]],
}


@dataclass(frozen=True)
class Served:
    """A model of a task, alone in a service with one engine slot and batches as large as these lists."""

    client: Client
    live: Live
    name: str
    precision: str

    def ask(self, texts: list[str]) -> list[Result]:
        """Return a result for each text, all texts in one batch."""
        batches = self.live.metric("bert_batch_texts_count")
        results = self.client.ask(ENDPOINTS[self.name], **self._body(texts))
        assert self.live.metric("bert_batch_texts_count") == batches + 1, "these texts were to be one batch"
        return results

    def _body(self, texts: list[str]) -> dict[str, object]:
        if self.name == "qa":
            return {"question": QUESTION, "context": texts, "top_k": 3}
        if self.name == "similarity":
            return {"text": texts[0], "candidates": texts, "truncate": True}
        return {"text": texts} | ({"truncate": True} if self.name == "sentiment" else {})


def of_models(*names: str) -> pytest.MarkDecorator:
    """Run a test with `served` in each precision of these models."""
    chosen = [(name, precision) for name in names for precision in CLOSE]
    return pytest.mark.parametrize("served", chosen, indirect=True, ids="-".join)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, workshop: Workshop) -> Iterator[Served]:
    """The demo model, or while its adapter is missing a tiny one trained on the sample data."""
    name, precision = request.param
    if not has_adapter(name):
        request.getfixturevalue("tiny_workshop")
    made = name if has_adapter(name) else f"tiny-{TINY[name]}"
    bundle = workshop.bundle(made, "--precision", precision)
    with serving(bundles=[bundle], batch_tokens=8192, engine_slots=1, **PATIENT) as live:
        yield Served(Client(live.url), live, name, precision)


def numbers_and_rest(name: str, result: Result) -> tuple[list[float], object]:
    """Part a result into its scores, and all that has to be the very same."""
    if name == "sentiment":
        scores = {score["label"]: score["score"] for score in result["scores"]}
        return [scores[label] for label in sorted(scores)], result["label"]
    if name == "ner":
        entities = result["entities"]
        return [e["score"] for e in entities], [(e["start"], e["end"], e["label"]) for e in entities]
    return [result["score"], result["no_answer_score"]], (result["start"], result["end"])


@of_models("sentiment", "ner", "qa")
def test_neighbours_do_not_change_an_answer(served: Served) -> None:
    for text in shipped_texts()[0][::4]:
        scores, rest = numbers_and_rest(served.name, served.ask([text])[0])
        for place, batch in BATCHES.items():
            texts = batch(text)
            found, same = numbers_and_rest(served.name, served.ask(texts)[texts.index(text)])
            assert same == rest, f"{text!r} {place}"
            assert found == pytest.approx(scores, abs=CLOSE[served.precision]), f"{text!r} {place}"


@of_models("similarity")
def test_neighbours_do_not_change_a_vector(served: Served) -> None:
    for text in shipped_texts()[0][::4]:
        (alone,) = served.client.ask("/embed", text=text)
        for place, batch in BATCHES.items():
            texts = batch(text)
            found = served.client.ask("/embed", text=texts, truncate=True)[texts.index(text)]
            assert found["embedding"] == pytest.approx(alone["embedding"], abs=CLOSE[served.precision]), (
                f"{text!r} {place}"
            )


@of_models("similarity")
def test_a_ranking_is_the_same_in_any_order_of_candidates(served: Served) -> None:
    texts = [*shipped_texts()[0][::4], *LONG]
    forward = {texts[r["index"]]: r["score"] for r in served.ask(texts)}
    turned = [texts[0], *texts[:0:-1]]
    backward = {turned[r["index"]]: r["score"] for r in served.ask(turned)}
    assert backward == pytest.approx(forward, abs=CLOSE[served.precision])
