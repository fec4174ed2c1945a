"""The examples for LangChain, LlamaIndex, Haystack, Presidio and KServe's client, each run as a user would.

Their packages are large, so they have an environment of their own: `make clients` makes it and runs this file with
BERT_FRAMEWORKS_PYTHON, its Python.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.documents import ROOT
from tests.support.live import Live, serving
from tests.support.open_ner import write_wide_bundle
from tests.support.tiny import write_tiny_bundles

PYTHON = os.environ.get("BERT_FRAMEWORKS_PYTHON", "")
QUESTION = "How do I reset my password?"
TEXTS = ["I forgot my login.", "The shop is open on Sunday.", "It is warm in Munich."]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="BERT_FRAMEWORKS_PYTHON names no Python: `make clients` sets it"),
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("bundles")
    write_tiny_bundles(folder)
    write_wide_bundle(folder / "open", "open")
    with serving(bundles=[folder]) as running:
        yield running


def run(live: Live, name: str, *arguments: str) -> list[Any]:
    """Return the lines of JSON that an example prints."""
    # No package may report its use. HF_HUB_OFFLINE would keep InferenceClient from this machine too.
    environment = {**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "False", "DO_NOT_TRACK": "1"}
    for variable in ("PYTHONPATH", "HF_HUB_OFFLINE"):
        environment.pop(variable, None)
    done = subprocess.run(
        [PYTHON, str(ROOT / f"examples/wires/{name}.py"), live.url, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[{"]


def expected(live: Live) -> dict[str, float]:
    """Return the cosine of each text with the question, best first."""
    results = live.post("/similarity", {"text": QUESTION, "candidates": TEXTS}).json["results"]
    return {TEXTS[each["index"]]: each["score"] for each in results}


def is_best(live: Live, found: list[dict[str, Any]]) -> bool:
    """Tell whether these are the two best texts with their scores."""
    best = expected(live)
    scores = [best[each["text"]] for each in found]
    return list(best)[:2] == [each["text"] for each in found] and scores == pytest.approx(
        [each["score"] for each in found], abs=1e-4
    )


def test_langchain(live: Live) -> None:
    (found,) = run(live, "with_langchain", "meaning")
    assert is_best(live, found)


def test_llama_index(live: Live) -> None:
    own = expected(live)
    for scores in run(live, "with_llama_index", "meaning"):
        assert scores == pytest.approx([own[text] for text in TEXTS], abs=1e-4)


def test_haystack(live: Live) -> None:
    lines = run(live, "with_haystack", "meaning")
    assert len(lines) == 2 and all(is_best(live, found) for found in lines)


def test_presidio(live: Live) -> None:
    text = "Angela Merkel met 🙂 in Munich"
    (found,) = run(live, "with_presidio", "names", text)
    own = live.post("/ner", {"text": text}).json["results"][0]["entities"]
    kinds = {"PER": "PERSON", "LOC": "LOCATION"}
    assert own and sorted(found["entities"]) == sorted([kinds[e["label"]], e["start"], e["end"]] for e in own)


def test_presidio_with_labels_of_the_request(live: Live) -> None:
    text, labels = "Angela Merkel met 🙂 in Munich", ["person", "organization", "city", "country"]
    labels += ["phone number", "email"]
    (found,) = run(live, "with_presidio_labels", "open", text)
    asked = {"text": text, "labels": labels, "model": "open", "threshold": 0.3}
    own = live.post("/ner", asked).json["results"][0]["entities"]
    kinds = {"city": "LOCATION", "country": "LOCATION", "email": "EMAIL_ADDRESS"}
    expected = [
        [kinds.get(e["label"], e["label"].upper().replace(" ", "_")), e["start"], e["end"]] for e in own
    ]
    assert own and sorted(found["entities"]) == sorted(expected)
    for kind, start, end in sorted(expected, key=lambda each: -each[1]):
        text = f"{text[:start]}<{kind}>{text[end:]}"
    assert found["text"] == text


def test_kserve(live: Live) -> None:
    (found,) = run(live, "with_kserve", "mood")
    (own,) = live.post("/classify", {"text": "A warm film.", "model": "mood"}).json["results"]
    assert found["v2"] == [own["label"]] and found["ready"] is True
    assert [each["label"] for each in found["v1"]] == [own["label"]]
