"""Scores of the demo models as they are served, by the official scorers, with 95% intervals.

    make bundles && python -m benchmarks.demo.scores --data ../shared/data

Serves the bundles, asks every example of the development and test files over HTTP, and scores the replies. Words of NER
files are joined by spaces. An interval is a bootstrap's over the examples, 1,000 draws.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine_line, parser_of, results_of
from benchmarks.serve.closed_loop import running_service
from bert.bundle import read_bundle
from bert.data.examples import QaExample, WordsExample
from bert.data.glue import read_glue
from bert.data.squad import read_squad
from bert.data.tagged_words import read_conll
from bert.metrics.correlation import spearman
from bert.metrics.entities import bio_spans
from bert.metrics.squad import squad_em_f1, squad_v2

DRAWS = 1000
TEXTS = 64
"""Texts of a request."""
Row = dict[str, Any]
Values = NDArray[np.float64]
PLAIN = {"MISC": None}
WNUT = {
    "person": "PER",
    "location": "LOC",
    "corporation": "ORG",
    "group": "ORG",
    "product": None,
    "creative-work": None,
}


@dataclass(frozen=True, slots=True)
class Scored:
    """One or several numbers for each example, and the function that makes a score of any draw of examples."""

    values: Values
    """(N, ...)"""
    score: Callable[[Values], float]

    def interval(self) -> tuple[float, float]:
        """Return the 2.5th and 97.5th percentile of the scores of draws with repetition."""
        rng = np.random.default_rng(0)
        count = len(self.values)
        scores = [self.score(self.values[rng.integers(0, count, count)]) for _ in range(DRAWS)]
        low, high = np.percentile(scores, [2.5, 97.5])
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class DataSet:
    """A file, the model that is asked, and how its replies are scored."""

    model: str
    name: str
    file: str
    metric: str
    scored: Callable[["Asker", Path], Scored]


@dataclass(frozen=True, slots=True)
class Asker:
    """Client that gets the service's results in the order of the examples."""

    url: str

    def results(self, path: str, columns: Mapping[str, Sequence[str]], **options: Any) -> Iterator[Row]:
        """Yield a result for each row of the columns."""
        count = len(next(iter(columns.values())))
        for start in range(0, count, TEXTS):
            body = {name: list(values[start : start + TEXTS]) for name, values in columns.items()}
            yield from results_of(self.url + path, body | options)


def classification(asker: Asker, file: Path) -> Scored:
    """Score accuracy."""
    rows = list(read_glue(file, "SST-2"))
    found = asker.results("/classify", {"text": [row.text for row in rows]}, model="sentiment")
    right = [result["label"] == row.label for row, result in zip(rows, found, strict=True)]
    return Scored(np.array(right, np.float64), lambda values: float(values.mean()))


def entities(
    label_map: Mapping[str, str | None], *, lower: bool = False, at_signs: bool = True, **options: Any
) -> Callable[[Asker, Path], Scored]:
    """Score entity F1: exact span and type over the words of the file. Without `at_signs`, no "@" is one in the file."""

    def scored(asker: Asker, file: Path) -> Scored:
        sentences = list(read_conll(file, dict(label_map)))
        if not at_signs:
            sentences = [without_at_signs(sentence) for sentence in sentences]
        texts = [" ".join(sentence.words) for sentence in sentences]
        found = asker.results(
            "/ner", {"text": [text.lower() if lower else text for text in texts]}, model="ner", **options
        )
        counts = [
            word_counts(sentence, result["entities"])
            for sentence, result in zip(sentences, found, strict=True)
        ]
        return Scored(np.array(counts, np.float64), _f1)

    return scored


def without_at_signs(sentence: WordsExample) -> WordsExample:
    """Return the sentence without the tags of its at signs, which Broad Twitter tags beside the name after them."""
    words = zip(sentence.words, sentence.labels, strict=True)
    return replace(sentence, labels=tuple("O" if word == "@" else tag for word, tag in words))


def word_counts(sentence: WordsExample, found: Sequence[Row]) -> tuple[int, int, int]:
    """Return how many entities are in both, in the file and in the reply."""
    ends = np.cumsum([len(word) + 1 for word in sentence.words])
    spans = {
        (
            entity["label"],
            int(np.searchsorted(ends, entity["start"], side="right")),
            int(np.searchsorted(ends, entity["end"] - 1, side="right")) + 1,
        )
        for entity in found
    }
    gold = set(bio_spans(sentence.labels))
    return len(gold & spans), len(gold), len(spans)


def _f1(counts: Values) -> float:
    both, gold, found = counts.sum(axis=0)
    return float(2 * both / max(gold + found, 1))


def answers(**options: Any) -> Callable[[Asker, Path], Scored]:
    """Score SQuAD's F1 of each question."""

    def scored(asker: Asker, file: Path) -> Scored:
        rows: list[QaExample] = list(read_squad(file))
        columns = {"question": [row.question for row in rows], "context": [row.context for row in rows]}
        texts = [result["answer"] or "" for result in asker.results("/qa", columns, model="qa", **options)]
        golds = [[text for text, _ in row.answers] for row in rows]
        score = squad_em_f1 if all(golds) else squad_v2
        return Scored(
            np.array([_question_f1(score, gold, text) for gold, text in zip(golds, texts, strict=True)]),
            lambda values: float(values.mean()),
        )

    return scored


def _question_f1(score: Callable[..., Any], gold: Sequence[str], text: str) -> float:
    return float(score([gold], [text]).f1)


def similarity(asker: Asker, file: Path) -> Scored:
    """Score the rank correlation of cosines with the labels."""
    rows = list(read_glue(file, "STS-B"))
    vectors = [
        np.array(
            [result["embedding"] for result in asker.results("/embed", {"text": texts}, model="similarity")]
        )
        for texts in ([row.text for row in rows], [row.text_pair or "" for row in rows])
    ]
    cosines = (vectors[0] * vectors[1]).sum(axis=1)
    gold = np.array([float(row.label) for row in rows])  # type: ignore[arg-type]
    return Scored(np.stack([gold, cosines], axis=1), lambda values: spearman(values[:, 0], values[:, 1]))


SETS = (
    DataSet("sentiment", "SST-2 dev", "glue/SST-2/dev.tsv", "accuracy", classification),
    DataSet("ner", "wikigold dev", "ner/wikigold/dev.conll", "entity F1", entities(PLAIN)),
    DataSet(
        "ner",
        "wikigold dev in small letters",
        "ner/wikigold/dev.conll",
        "entity F1",
        entities(PLAIN, lower=True),
    ),
    DataSet("ner", "Broad Twitter Corpus test", "ner/btc/test.conll", "entity F1", entities({})),
    DataSet(
        "ner",
        "Broad Twitter Corpus test, at signs no entities",
        "ner/btc/test.conll",
        "entity F1",
        entities({}, at_signs=False),
    ),
    DataSet("ner", "WNUT-17 test", "ner/wnut17/test.conll", "entity F1", entities(WNUT)),
    DataSet(
        "ner",
        "WNUT-17 test, `left_out: [handles]`",
        "ner/wnut17/test.conll",
        "entity F1",
        entities(WNUT, left_out=["handles"]),
    ),
    DataSet(
        "qa", "SQuAD 1.1 dev, always an answer", "squad/dev-v1.1.json", "F1", answers(no_answer_threshold=1)
    ),
    DataSet("qa", "SQuAD 2.0 dev", "squad/dev-v2.0.json", "F1", answers()),
    DataSet("similarity", "STS-B dev", "glue/STS-B/dev.tsv", "Spearman", similarity),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "bundles", type=Path, nargs="?", default=Path("bundles"), help="folder of the demo bundles"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with glue/, ner/ and squad/")
    parser.add_argument("--models", default="sentiment,ner,qa,similarity", help="names, with commas between")
    args = parser.parse_args(arguments)
    print(
        machine_line("onnxruntime"),
        "",
        "| model | data | score | | 95% | examples |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    with running_service(args.bundles, ["--request-timeout-ms", "300000"]) as url:
        for each in SETS:
            if each.model not in args.models.split(","):
                continue
            scored = each.scored(Asker(url), args.data / each.file)
            precision = read_bundle(args.bundles / each.model).manifest.precision
            low, high = scored.interval()
            cells = (
                f"{each.model}, {precision}", each.name, each.metric,
                f"{scored.score(scored.values):.4f}", f"{low:.3f} to {high:.3f}", f"{len(scored.values):,}",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
