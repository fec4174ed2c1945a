"""The service against transformers, on the same fine-tuned weights and 200 real texts a task, in float32.

Same labels, same entities and offsets, same answers, scores within 1e-3. What differs, and is meant to:

- "[SEP]", "[CLS]" and their like in a text are read as the characters that they are. transformers puts the special
  token there unless `split_special_tokens` is set, as it is here.
- An entity or answer that ends in a letter with combining marks ("e" + U+0301), or an emoji with a variation selector,
  ends after them. transformers ends before them, and an accent is cut off.
- A word is what the tokenizer splits at spaces and punctuation. transformers takes a piece as the continuation of a
  word where its length is not that of its characters, which is also so where a control character was dropped.
- The pipelines cut a text at the model's length (NER) or fail on it (classification). Here NER reads it in windows, each
  word in the window that shows most around it, and classification refuses it with its length.
- The best sequence of tags that BIO allows, and words that are left out of entities, are this project's. The model of names
  is exported without both here. Its letter shapes are given to transformers as segments.
- transformers 5 has no pipeline for questions any more. The reference here is google-research/bert's rule, span by
  span: the pipelines of transformers 4 knew no null threshold and took softmax over starts and ends apart.
"""

import csv
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bert.tasks.aggregation import Aggregation
from tests.support.client import Client, Result, check_offsets
from tests.support.live import PATIENT, serving
from tests.support.workshop import MODELS, SHARED, Workshop, has_adapter, shipped_texts, why_missing

pytestmark = pytest.mark.slow

TEXTS_A_TASK = 200
CLOSE = 1e-3
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no folder shared/data beside the checkout: this test reads 200 real texts"
)
FP32 = ("--precision", "fp32")
Questions = list[tuple[str, str]]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_adapter(name), reason=why_missing(name))


@contextmanager
def served(workshop: Workshop, name: str) -> Iterator[Client]:
    with serving(bundles=[workshop.bundle(name, *FP32)], **PATIENT) as live:
        yield Client(live.url)


def spread(rows: list[Any], count: int) -> list[Any]:
    """Return so many rows from all over the file."""
    step = max(1, len(rows) // count)
    return rows[::step][:count]


def task_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MODELS / name / "task.json").read_text(encoding="utf-8"))
    return content


def load(minilm: Path, name: str) -> tuple[Any, Any]:
    """Return the reference's model and tokenizer."""
    from tests.support import reference_answers  # here: transformers and peft take seconds to import

    spec = task_of(name)
    labels, segments = tuple(spec["labels"]), 6 if spec.get("letter_shapes") else 2
    model = reference_answers.load_model(minilm, MODELS / name, spec["task"], labels, segments=segments)
    return model, reference_answers.load_tokenizer(minilm, spec["max_tokens"])


def compare_labels(workshop: Workshop, minilm: Path, texts: list[str]) -> None:
    from transformers import pipeline

    model, tokenizer = load(minilm, "sentiment")
    expected = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(texts)
    with served(workshop, "sentiment") as client:
        found = client.ask("/classify", text=texts)
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        assert ours["label"] == theirs[0]["label"], text
        by_label = {score["label"]: score["score"] for score in theirs}
        assert {s["label"]: s["score"] for s in ours["scores"]} == pytest.approx(by_label, abs=CLOSE), text


def without_marks(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where transformers ends a stretch: before trailing combining marks (see above)."""
    while end > start and unicodedata.category(text[end - 1]) in ("Mn", "Me"):
        end -= 1
    return start, end


def plain(workshop: Workshop, name: str) -> Path:
    """Return a copy of a demo model that takes each word's best tag, and leaves no word out."""
    copy = workshop.folder / f"plain-{name}"
    with workshop.lock(copy.name):
        shutil.copytree(MODELS / name, copy, dirs_exist_ok=True)
        spec = task_of(name) | {"viterbi": False, "left_out": []}
        (copy / "task.json").write_text(json.dumps(spec), encoding="utf-8")
    return copy


def compare_entities(workshop: Workshop, minilm: Path, texts: list[str]) -> None:
    from tests.support import reference_answers

    model, tokenizer = load(minilm, "ner")
    tagger = reference_answers.ShapeTagger(model=model, tokenizer=tokenizer)
    workshop.checkpoints["ner-plain"] = plain(workshop, "ner")
    with served(workshop, "ner-plain") as client:
        found = {strategy: client.ask("/ner", text=texts, aggregation=strategy) for strategy in Aggregation}
    for strategy, results in found.items():
        expected: list[list[Result]] = tagger(texts, aggregation_strategy=strategy)
        label = "entity" if strategy is Aggregation.NONE else "entity_group"
        entities = 0
        for text, ours, theirs in zip(texts, results, expected, strict=True):
            check_offsets("/ner", text, ours)
            shown = [(*without_marks(text, e["start"], e["end"]), e["label"]) for e in ours["entities"]]
            assert shown == [(e["start"], e["end"], e[label]) for e in theirs], (strategy, text)
            scores = [float(e["score"]) for e in theirs]
            assert [e["score"] for e in ours["entities"]] == pytest.approx(scores, abs=CLOSE), text
            entities += len(shown)
        assert entities >= len(texts) // 4, "too few entities to prove anything"


def compare_answers(workshop: Workshop, minilm: Path, questions: Questions) -> None:
    from tests.support import reference_answers

    model, tokenizer = load(minilm, "qa")
    spec = task_of("qa")
    with served(workshop, "qa") as client:
        found = client.ask("/qa", question=[q for q, _ in questions], context=[c for _, c in questions])
    for (question, context), ours in zip(questions, found, strict=True):
        theirs = reference_answers.answer(model, tokenizer, question, context, spec)
        check_offsets("/qa", context, ours)
        assert ours["no_answer_score"] == pytest.approx(theirs.no_answer_score, abs=CLOSE), question
        if theirs.margin < 1e-4:  # a coin on its edge: float32 sums in another order may turn it
            continue
        shown = None if ours["start"] is None else without_marks(context, ours["start"], ours["end"])
        assert shown == (None if theirs.start is None else (theirs.start, theirs.end)), question
        assert ours["score"] == pytest.approx(theirs.score, abs=CLOSE), question


def compare_similarity(workshop: Workshop, minilm: Path, texts: list[str]) -> None:
    from tests.support import reference_answers

    vectors = reference_answers.embeddings(*load(minilm, "similarity"), texts)
    with served(workshop, "similarity") as client:
        found = client.ask("/embed", text=texts, truncate=True)
        ranked = client.ask("/similarity", text=texts[0], candidates=texts[1:], truncate=True)
    for text, ours, theirs in zip(texts, found, vectors, strict=True):
        assert ours["embedding"] == pytest.approx(theirs.tolist(), abs=CLOSE), text
    cosines = vectors[1:] @ vectors[0]
    assert [result["score"] for result in ranked] == pytest.approx(
        [float(cosines[result["index"]]) for result in ranked], abs=CLOSE
    )
    assert all(a["score"] >= b["score"] for a, b in pairwise(ranked))


Compare = Callable[[Workshop, Path, list[str]], None]
TEXT_TASKS = [
    pytest.param("sentiment", compare_labels, marks=needs("sentiment"), id="sentiment"),
    pytest.param("ner", compare_entities, marks=needs("ner"), id="ner"),
    pytest.param("similarity", compare_similarity, marks=needs("similarity"), id="similarity"),
]


@pytest.mark.parametrize(("name", "compare"), TEXT_TASKS)
def test_the_shipped_texts(workshop: Workshop, minilm: Path, name: str, compare: Compare) -> None:
    texts, questions = shipped_texts()
    marks = "Ame\u0301lie Dvor\u030ca\u0301k met Zoe\u0308 in Malmo\u0308"
    compare(workshop, minilm, [*texts, *{context for _, context in questions}, marks, "Ada [SEP] Lovelace"])


@needs("qa")
def test_the_shipped_questions_in_paragraphs_and_in_windows_of_a_long_text(
    workshop: Workshop, minilm: Path
) -> None:
    texts, questions = shipped_texts()
    book = "\n".join([*dict.fromkeys(context for _, context in questions), *texts])
    compare_answers(workshop, minilm, [*questions, *((question, book) for question, _ in questions[:4])])


@needs_shared
@pytest.mark.parametrize(("name", "compare"), TEXT_TASKS)
def test_200_real_texts(workshop: Workshop, minilm: Path, name: str, compare: Compare) -> None:
    read = {"sentiment": read_reviews, "ner": read_news_and_tweets, "similarity": read_sentences}[name]
    texts = read()
    assert len(texts) == TEXTS_A_TASK
    compare(workshop, minilm, texts)


@needs_shared
@needs("qa")
def test_200_real_questions(workshop: Workshop, minilm: Path) -> None:
    half = TEXTS_A_TASK // 2
    answerable, others = read_questions("dev-v1.1.json"), read_questions("dev-v2.0.json")
    compare_answers(workshop, minilm, [*spread(answerable, half), *spread(others, half)])


def read_table(path: str) -> list[dict[str, str]]:
    with (SHARED / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_reviews() -> list[str]:
    return [row["sentence"] for row in spread(read_table("glue/SST-2/dev.tsv"), TEXTS_A_TASK)]


def read_sentences() -> list[str]:
    rows = spread(read_table("glue/STS-B/dev.tsv"), TEXTS_A_TASK // 2)
    return [row[column] for row in rows for column in ("sentence1", "sentence2")]


def read_news_and_tweets() -> list[str]:
    texts = []
    for path in ("ner/btc/test.conll", "ner/wikigold/dev.conll"):
        sentences = (SHARED / path).read_text(encoding="utf-8").strip().split("\n\n")
        for sentence in spread(sentences, TEXTS_A_TASK // 2):
            texts.append(" ".join(line.split("\t")[0] for line in sentence.split("\n")))
    return texts


def read_questions(name: str) -> Questions:
    articles = json.loads((SHARED / "squad" / name).read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return [(qa["question"], paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]]
