"""ModernBERT's long texts over HTTP: read in one piece, answered as by transformers, refused above the limit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from model_export.export import export
from model_export.verify.parity import Tolerance
from tests.support.checkpoints import SPECS
from tests.support.families import their_outputs, write_relative
from tests.support.live import PATIENT, Live, serving

LONGEST = 8192
TASKS = ("classification", "ner", "qa")
SENTENCE = "Ada met engineers from Siemens in Munich; it was warm. "
DOCUMENT, QUESTION = SENTENCE * 120, "Where was it warm?"
MAX_ANSWER = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("long")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, torch.nn.Module]:
    """Random models of two layers, one with a window, that read 8,192 tokens."""
    shape = {
        "num_hidden_layers": 2,
        "max_position_embeddings": LONGEST,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    return {task: write_relative(folder / task, "modernbert", SPECS[task], **shape) for task in TASKS}


@pytest.fixture(scope="module")
def live(models: dict[str, torch.nn.Module], folder: Path) -> Iterator[Live]:
    for task in models:
        export(folder / task, folder / "bundles" / task, "fp32", tolerance_of=Tolerance.of)
    with serving(bundles=[folder / "bundles"], keep_tuning=False, **PATIENT) as service:
        yield service


def encoded(folder: Path, text: str, other: str | None = None) -> tokenizers.Encoding:
    """Encode with the bundle's own file, which this reads without the project."""
    return tokenizers.Tokenizer.from_file(str(folder / "bundles/ner/tokenizer.json")).encode(text, other)


def outputs(model: torch.nn.Module, ids: list[int]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    tensor = torch.tensor([ids])
    with torch.no_grad():
        found = their_outputs(model, tensor, torch.ones_like(tensor), torch.zeros_like(tensor))
    return np.asarray(found[0])


def test_entities_of_a_document_are_those_of_its_words_in_one_piece(
    live: Live, models: dict[str, torch.nn.Module], folder: Path
) -> None:
    reply = live.post("/ner", {"text": DOCUMENT}).json
    document = encoded(folder, DOCUMENT)
    assert reply["usage"]["tokens"] == len(document.ids) > 3000
    labels = [
        SPECS["ner"].labels[n].partition("-")[2] for n in outputs(models["ner"], document.ids).argmax(1)
    ]
    entities = reply["results"][0]["entities"]
    assert entities[-1]["end"] > len(DOCUMENT) - 2 * len(SENTENCE)
    assert all(DOCUMENT[each["start"] : each["end"]] == each["text"] for each in entities)
    type_at = {at: each["label"] for each in entities for at in range(each["start"], each["end"])}
    words = [number for number, word in enumerate(document.word_ids) if word is not None]
    first = [n for n in words if document.word_ids[n] != document.word_ids[n - 1]]
    assert len(first) > 1000
    for token in first:
        assert type_at.get(document.offsets[token][0], "") == labels[token]


def test_an_answer_is_the_best_span_of_the_whole_document(
    live: Live, models: dict[str, torch.nn.Module], folder: Path
) -> None:
    reply = live.post("/qa", {"question": QUESTION, "context": DOCUMENT}).json
    pair = encoded(folder, QUESTION, DOCUMENT)
    assert reply["usage"]["tokens"] == len(pair.ids) > 3000
    starts, ends = outputs(models["qa"], pair.ids).T
    context = [n for n, sequence in enumerate(pair.sequence_ids) if sequence == 1]
    spans = ((a, b) for a in context for b in range(a, min(a + MAX_ANSWER, context[-1] + 1)))
    found = reply["results"][0]
    first = next(n for n in context if pair.offsets[n][0] == found["start"])
    last = next(n for n in context if pair.offsets[n][1] == found["end"])
    # The document repeats itself: several spans may have the best score but for rounding.
    best = max(float(starts[a] + ends[b]) for a, b in spans)
    assert float(starts[first] + ends[last]) == pytest.approx(best, abs=1e-4)
    assert last - first < MAX_ANSWER
    assert found["answer"] == DOCUMENT[found["start"] : found["end"]]


def test_a_text_over_the_limit_is_refused_with_both_lengths_or_cut(live: Live) -> None:
    longest = "a " * (LONGEST - 2)  # [CLS] and [SEP] are the other two
    assert live.post("/classify", {"text": longest}).json["usage"] == {"tokens": LONGEST}
    refused = live.post("/classify", {"text": longest + "a"})
    assert refused.status == 422
    assert f"has {LONGEST + 1} tokens and the model reads at most {LONGEST}" in refused.json["detail"]
    cut = live.post("/classify", {"text": longest + "a", "truncate": True}).json
    assert cut["usage"] == {"tokens": LONGEST} and cut["results"][0]["truncated"]
