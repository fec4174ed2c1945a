"""A tiny model of each task: trained on the sample data, exported in each precision, served by a process, asked."""

import csv
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime
import pytest

from bert.bundle import read_bundle
from bert.data.squad import read_squad
from bert.data.tagged_words import read_conll
from bert.metrics.squad import squad_v2
from bert.tasks.spec import TaskSpec
from tests.end_to_end.conftest import TINY_TASKS
from tests.support.client import Client, check_offsets
from tests.support.finetuning import SAMPLES
from tests.support.process import address, started
from tests.support.workshop import ROOT, Workshop

pytestmark = pytest.mark.slow

SERVED = ("fp32", "int8")


@pytest.fixture(scope="module")
def bundles(tiny_workshop: Workshop) -> dict[str, Path]:
    """Bundles by "task-precision"; all but fp16 can be served without a GPU."""
    found = {}
    for task in TINY_TASKS:
        for precision in (*SERVED, "fp16"):
            name = f"{task}-{precision}"
            tiny_workshop.checkpoints[name] = tiny_workshop.checkpoints[f"tiny-{task}"]
            found[name] = tiny_workshop.bundle(name, "--precision", precision)
    return found


@pytest.fixture(scope="module")
def client(bundles: dict[str, Path]) -> Iterator[Client]:
    """One bert-serve with the six bundles that the CPU runs."""
    served = ",".join(str(folder) for name, folder in bundles.items() if not name.endswith("fp16"))
    with started("--bundles", served) as process:
        yield Client(address(process.until("Ctrl-C")))


def dev_score(tiny_workshop: Workshop, task: str, metric: str) -> float:
    """What bert-finetune measured on the dev file and wrote into task.json."""
    spec = TaskSpec.read(tiny_workshop.checkpoints[f"tiny-{task}"])
    (scores,) = spec.scores.values()
    return float(scores[metric])


def tolerance(precision: str, examples: int) -> float:
    """In 8 bits one of so few may differ; task.json has four decimals."""
    return 1e-4 if precision == "fp32" else 1e-4 + 1 / examples


def read_sentiment() -> tuple[list[str], list[str]]:
    with (SAMPLES / "sentiment-dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


@pytest.mark.parametrize("precision", SERVED)
def test_served_labels_score_on_dev_what_training_measured(
    client: Client, tiny_workshop: Workshop, precision: str
) -> None:
    texts, gold = read_sentiment()
    results = client.ask("/classify", text=texts, model=f"classification-{precision}")
    right = [result["label"] == label for result, label in zip(results, gold, strict=True)]
    trained = dev_score(tiny_workshop, "classification", "accuracy")
    assert sum(right) / len(right) == pytest.approx(trained, abs=tolerance(precision, len(texts)))
    for result in results:
        assert sum(score["score"] for score in result["scores"]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("precision", SERVED)
def test_served_entities_are_those_that_training_measured(
    client: Client, tiny_workshop: Workshop, precision: str
) -> None:
    sentences = read_conll(SAMPLES / "ner-dev.conll", {})
    texts = [" ".join(sentence.words) for sentence in sentences]
    gold = {(n, *span) for n, s in enumerate(sentences) for span in gold_spans(s.words, s.labels)}
    results = client.ask("/ner", text=texts, model=f"ner-{precision}")
    found = {(n, e["start"], e["end"], e["label"]) for n, r in enumerate(results) for e in r["entities"]}
    for text, result in zip(texts, results, strict=True):
        check_offsets("/ner", text, result)
    f1 = 2 * len(found & gold) / max(1, len(found) + len(gold))
    trained = dev_score(tiny_workshop, "ner", "f1")
    assert f1 == pytest.approx(trained, abs=tolerance(precision, len(gold)))


@pytest.mark.parametrize("precision", SERVED)
def test_served_answers_score_on_dev_what_training_measured(
    client: Client, tiny_workshop: Workshop, precision: str
) -> None:
    examples = read_squad(SAMPLES / "qa-dev.json")
    results = client.ask(
        "/qa",
        question=[example.question for example in examples],
        context=[example.context for example in examples],
        model=f"qa-{precision}",
    )
    for example, result in zip(examples, results, strict=True):
        check_offsets("/qa", example.context, result)
    golds = [[text for text, _ in example.answers] for example in examples]
    exact = squad_v2(golds, [result["answer"] or "" for result in results]).to_dict()["exact"]
    trained = dev_score(tiny_workshop, "qa", "exact_match")
    assert exact == pytest.approx(trained, abs=tolerance(precision, len(examples)))


def gold_spans(words: Sequence[str], tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and type of each entity of words joined by spaces; the sample data begin each with B-."""
    at, span = 0, None
    for word, tag in zip([*words, ""], [*tags, "O"], strict=True):
        if span is not None and not tag.startswith("I-"):
            yield span
            span = None
        if tag.startswith("B-"):
            span = (at, at + len(word), tag[2:])
        elif span is not None:
            span = (span[0], at + len(word), span[2])
        at += len(word) + 1


def test_a_text_over_the_models_length_is_read_in_windows(client: Client) -> None:
    text = "Anna Schmidt met Paul Smith in Vienna. " * 40
    for precision in SERVED:
        (result,) = client.ask("/ner", text=text, model=f"ner-{precision}")
        check_offsets("/ner", text, result)
        assert result["entities"][-1]["start"] > len(text) // 2
        body = {"question": "When was the iron bridge opened?", "context": text}
        (result,) = client.ask("/qa", **body, model=f"qa-{precision}", top_k=5)
        check_offsets("/qa", text, result)


@pytest.mark.parametrize("task", TINY_TASKS)
def test_each_precision_is_fused_and_says_how_near_it_is(bundles: dict[str, Path], task: str) -> None:
    for precision in (*SERVED, "fp16"):
        manifest = read_bundle(bundles[f"{task}-{precision}"]).manifest
        assert (manifest.precision, manifest.task.task) == (precision, task)
        assert manifest.layout == ("flat" if precision == "fp16" else "rows")
        attention = [n for name, n in manifest.fused_operators.items() if name.endswith("Attention")]
        assert sum(attention) == 2, "one for each of the two layers"
        assert manifest.parity


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine can serve fp16"
)
def test_fp16_without_a_gpu_is_refused_with_what_to_do(bundles: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "service.cli", "--port", "0", "--bundles"]
    run = subprocess.run(
        [*command, str(bundles["ner-fp16"])], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert run.returncode == 1
    assert "is for a GPU" in run.stderr and "bert-export" in run.stderr
