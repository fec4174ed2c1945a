"""Write unanswerable questions, made from the answerable ones of a SQuAD file, into another SQuAD file.

    python -m scripts.make_unanswerable train.json unanswerable.json --share 0.7 --cut 0.3

`--share` asks questions of other paragraphs, so many for each answerable question. Such a paragraph shares words with the
question, holds none of its answers, and is of the same article if possible. So a model learns that words in common are
not yet an answer; random paragraphs would differ by their subject alone. `--cut` asks a share of the questions again of
their own paragraph, without the sentences that hold an answer.
"""

import argparse
import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import QaExample
from bert.data.squad import read_squad
from training.corpus.sentences import split_sentences

_WORD = re.compile(r"[^\W_]+")
_CHINESE = re.compile(r"[\u3400-\u9fff]")
FEWEST_CHARACTERS = 100
"""Fewest characters of a paragraph whose answer was cut out."""
POOL = 3
"""Best paragraphs to draw from, so that a very general one does not serve for every question."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, make the questions and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", type=Path, help="SQuAD file with answerable questions")
    parser.add_argument("output", type=Path, help="file to write, which holds the new questions alone")
    parser.add_argument("--share", type=float, default=0.0, help="new questions for each answerable one")
    parser.add_argument(
        "--cut", type=float, default=0.0, help="share of the questions to ask of cut paragraphs"
    )
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args(arguments)
    if given.share < 0 or not 0 <= given.cut <= 1:
        parser.error("--share must be 0 or more, and --cut from 0 to 1")
    examples = read_squad(given.questions)
    made = make_unanswerable(examples, given.share, given.seed) + cut_answers(examples, given.cut, given.seed)
    if not made:
        parser.error(
            f"no questions can be made of {given.questions}: too few, or no paragraph to ask them of"
        )
    write_squad(given.output, made)
    print(f"{given.output}: {len(made):,} questions")


def write_squad(path: Path, examples: Sequence[QaExample]) -> None:
    """Write unanswerable questions as SQuAD 2.0 has them, in their order."""
    articles = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {"id": e.id, "question": e.question, "answers": [], "is_impossible": True}
                        for e in asked
                    ],
                }
                for context, asked in groupby(article, key=lambda e: e.context)
            ],
        }
        for title, article in groupby(examples, key=lambda e: e.title)
    ]
    path.write_text(json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False), encoding="utf-8")


def make_unanswerable(examples: Sequence[QaExample], per_answerable: float, seed: int) -> list[QaExample]:
    """Return about `per_answerable` new unanswerable questions for each answerable one in `examples`.

    Their ids are `ID-no-1`, `ID-no-2`, ...; the same seed gives the same questions. Fewer come back where no
    paragraph is without the answer.
    """
    answerable = [example for example in examples if example.answers]
    if not answerable or per_answerable == 0:
        return []
    rng = np.random.default_rng(seed)
    index = _Index(examples, rng)
    made = []
    for example, wanted in zip(answerable, _share(len(answerable), per_answerable, rng), strict=True):
        if wanted:
            drawn = _draw(index, example, int(wanted), rng)
            made += [_without_answer(example, index, place, n) for n, place in enumerate(drawn, 1)]
    return made


def cut_answers(examples: Sequence[QaExample], share: float, seed: int) -> list[QaExample]:
    """Return a share of the answerable questions, with their paragraphs but without all sentences that hold an answer.

    What is left speaks of the same things, so that only the answer itself is missing. Paragraphs of which too little
    would be left are passed over. Ids are `ID-cut`; the same seed gives the same questions.
    """
    rng = np.random.default_rng((seed, 2))
    found = []
    for example in examples:
        if not example.answers or rng.random() >= share:
            continue
        folded = [_fold(text) for text, _ in example.answers]
        sentences = split_sentences(example.context, "en")
        kept = " ".join(s for s in sentences if not any(answer in _fold(s) for answer in folded))
        if len(kept) >= FEWEST_CHARACTERS and not _holds_answer(_fold(kept), example):
            found.append(QaExample(f"{example.id}-cut", example.question, kept, (), example.title))
    return found


def _share(count: int, per_answerable: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Spread round(count * per_answerable): each question gets the floor, and a random part one more."""
    total = round(count * per_answerable)
    wanted = np.full(count, total // count, dtype=np.int64)
    wanted[rng.permutation(count)[: total % count]] += 1
    return wanted


def _without_answer(example: QaExample, index: "_Index", place: int, n: int) -> QaExample:
    return QaExample(f"{example.id}-no-{n}", example.question, index.contexts[place], (), index.titles[place])


def _draw(index: "_Index", example: QaExample, wanted: int, rng: np.random.Generator) -> list[int]:
    """Draw `wanted` paragraphs out of the best ones that do not hold an answer."""
    pool: list[int] = []
    for place in index.ranked(example):
        if not _holds_answer(index.folded[place], example):
            pool.append(place)
            if len(pool) == wanted + POOL - 1:
                break
    order = rng.permutation(len(pool))[:wanted]
    return [pool[i] for i in order]


def _holds_answer(folded: str, example: QaExample) -> bool:
    return any(_fold(text) in folded for text, _ in example.answers)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(text: str) -> set[str]:
    """Words of a text, folded; Chinese counts by character pairs, having no spaces."""
    folded = text.casefold()
    words = {word for word in _WORD.findall(folded) if not _CHINESE.search(word)}
    pairs = pairwise(folded)
    return words | {a + b for a, b in pairs if _CHINESE.match(a) and _CHINESE.match(b)}


class _Index:
    """All different paragraphs, those of one title side by side, with an inverted index of their words."""

    def __init__(self, examples: Sequence[QaExample], rng: np.random.Generator) -> None:
        title_of = {example.context: example.title for example in reversed(examples)}
        self.contexts = sorted(title_of, key=lambda context: (title_of[context], context))
        self.titles = [title_of[context] for context in self.contexts]
        self.folded = [_fold(context) for context in self.contexts]
        self.place_of = {context: place for place, context in enumerate(self.contexts)}
        count, holders = len(self.contexts), defaultdict[str, list[int]](list)
        for place, context in enumerate(self.contexts):
            for word in _words(context):
                holders[word].append(place)
        self.postings = {word: np.array(places, dtype=np.int64) for word, places in holders.items()}
        # Inverse document frequencies.
        self.weights = {word: float(np.log(count / len(places))) for word, places in holders.items()}
        norms = np.zeros(count)
        for word, places in self.postings.items():
            norms[places] += self.weights[word] ** 2
        # The full norm (cosine) would favour short paragraphs, and none at all long ones: the fourth root of the sum of
        # squares is half way, and keeps the length from giving the answer away.
        self.scale = 1.0 / np.maximum(norms, 1e-9) ** 0.25
        self.tie = rng.random(count) * 1e-9

    def ranked(self, example: QaExample) -> Iterator[int]:
        """Yield places from best to worst: those of the same title first, then all the others."""
        scores = self._scores(example.question)
        own = self.place_of[example.context]
        title = self.titles[own]
        first, last = bisect_left(self.titles, title), bisect_right(self.titles, title)
        near = first + np.argsort(-scores[first:last], kind="stable")
        yield from (int(place) for place in near if place != own)
        far = np.argsort(-scores, kind="stable")
        yield from (int(place) for place in far if not first <= place < last)

    def _scores(self, question: str) -> NDArray[np.float64]:
        scores = np.zeros(len(self.contexts))
        # Sorted, because a sum of floats depends on the order, and a set's order on the hash seed.
        for word in sorted(_words(question)):
            if word in self.postings:
                scores[self.postings[word]] += self.weights[word]
        return scores * self.scale + self.tie


if __name__ == "__main__":
    main()
