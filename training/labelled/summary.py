"""Summary of a data file: examples of each label, and inputs that are too long to be read whole."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import EntitiesExample, QaExample, TextExample, WordsExample
from bert.metrics.entities import bio_spans

LABELS_SHOWN = 12
"""Labels that a line of the log counts; the report counts all of them."""
ACCEPTABLE_SHARE = 0.05
"""Share of inputs that may be cut without a warning."""
LIMITS = (32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Limits that are tried in turn for a suggestion."""


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of one file's inputs before anything is cut."""

    tokens: NDArray[np.int64]
    """(N,): tokens of each input, read whole, special ones included."""
    limit: int
    """Most tokens of an input that the run reads at once."""
    setting: str = "max_tokens"
    """The setting that the limit comes from."""
    unit: str = "texts"
    in_windows: bool = False
    """True where longer inputs are read in windows, so that nothing is lost."""

    @property
    def longer(self) -> int:
        """Number of inputs over the limit."""
        return int((self.tokens > self.limit).sum())

    @property
    def share(self) -> float:
        """Share of inputs over the limit."""
        return self.longer / max(1, len(self.tokens))

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        return int(self.tokens.max(initial=0))

    def sentence(self, largest: int) -> str:
        """Say how many inputs are too long, or return "". `largest` is the highest limit that the base allows."""
        if not self.longer:
            return ""
        done = "read in windows" if self.in_windows else "cut"
        sentence = (
            f"{self.longer:,} of {len(self.tokens):,} {self.unit} ({self.share:.1%}) are longer than "
            f"{self.setting} {self.limit} and are {done}; the longest has {self.longest:,} tokens"
        )
        better = None if self.in_windows else self._better_limit(largest)
        if better is None:
            return sentence
        left = float((self.tokens > better).mean())
        return f"{sentence}; {self.setting} {better} would cut {f'{left:.1%}' if left else 'none'}"

    def _better_limit(self, largest: int) -> int | None:
        """Return the lowest usual limit that cuts few inputs, else the highest possible one; None where none helps."""
        higher = sorted({limit for limit in LIMITS if self.limit < limit < largest} | {largest})
        few = min(ACCEPTABLE_SHARE, self.share / 2)
        found = next((limit for limit in higher if (self.tokens > limit).mean() <= few), largest)
        return found if (self.tokens > found).sum() < self.longer else None


@dataclass(frozen=True)
class FileSummary:
    """Counts of one data file."""

    part: str
    """Part of the data: train, dev or test."""
    name: str
    examples: int
    unit: str
    """Name of the examples: texts, pairs, sentences, questions."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """Examples of each label, or entities of each type; empty where the label is a number."""
    of: int = 0
    """Total that a label's share is taken of: examples, or entities."""
    range: tuple[float, float, float] | None = None
    """Lowest, mean and highest label, where labels are numbers."""
    inputs: int = 0
    """Inputs whose tokens are counted: an example may have two."""
    longer: int = 0
    """Inputs that are longer than the limit."""
    longest: int = 0
    """Tokens of the longest input."""
    is_cut: bool = True
    """True where a longer input loses its end, False where it is read in windows."""
    too_long: str = ""
    """A sentence about inputs over the limit; empty where there are none."""

    @property
    def sentence(self) -> str:
        """The examples and their labels in a line."""
        return f"{self.part} {self.name}: {self.examples:,} {self.unit}{self._labels()}"

    def _labels(self) -> str:
        if self.range is not None:
            low, mean, high = self.range
            return f", scores from {low:g} to {high:g}, mean {mean:.4g}"
        if not self.labels:
            return ""
        counted = sorted(self.labels.items(), key=lambda pair: -pair[1])
        shown = [
            f"{label} {count:,} ({count / max(1, self.of):.1%})" for label, count in counted[:LABELS_SHOWN]
        ]
        if left := len(counted) - len(shown):
            label, count = counted[-1]
            shown.append(f"and {left} more labels, the rarest {label} {count:,}")
        return ": " + ", ".join(shown)


def summarize(
    part: str, name: str, examples: Sequence[Any], labels: Sequence[str], lengths: Lengths, largest: int
) -> FileSummary:
    """Count one file; `labels` are those of the task, so that one without examples is counted too."""
    unit, counts, of = _count(examples, labels)
    return FileSummary(
        part,
        name,
        len(examples),
        unit,
        counts,
        of,
        _range(examples),
        len(lengths.tokens),
        lengths.longer,
        lengths.longest,
        not lengths.in_windows,
        lengths.sentence(largest),
    )


def label_counts(examples: Iterable[TextExample]) -> Counter[str]:
    """Count the examples of each label; an example with several counts for each of them."""
    counts = Counter[str]()
    for example in examples:
        label = example.label
        counts.update(label if isinstance(label, tuple) else [label] if isinstance(label, str) else [])
    return counts


def _count(examples: Sequence[Any], labels: Sequence[str]) -> tuple[str, dict[str, int], int]:
    """Return what an example is called, the count of each label, and what a share is taken of."""
    match examples[0] if examples else None:
        case TextExample(text_pair=pair):
            counts = label_counts(examples)
            if negatives := sum(bool(example.negatives) for example in examples):
                return "pairs", {"with negatives": negatives}, len(examples)
            named = dict.fromkeys(labels, 0) if counts else {}
            return ("texts" if pair is None else "pairs"), {**named, **counts}, len(examples)
        case WordsExample():
            kinds = Counter(kind for example in examples for kind, _, _ in bio_spans(example.labels))
            named = dict.fromkeys((label[2:] for label in labels if label != "O"), 0)
            return "sentences", {**named, **kinds}, kinds.total()
        case EntitiesExample():
            kinds = Counter(label for example in examples for _, _, label in example.entities)
            return "texts", dict(kinds), kinds.total()
        case QaExample():
            answered = sum(bool(example.answers) for example in examples)
            counts_of = {"with an answer": answered, "without an answer": len(examples) - answered}
            return "questions", counts_of, len(examples)
    return "questions", {}, len(examples)


def _range(examples: Sequence[Any]) -> tuple[float, float, float] | None:
    numbers = [e.label for e in examples if isinstance(e, TextExample) and isinstance(e.label, float)]
    return (min(numbers), sum(numbers) / len(numbers), max(numbers)) if numbers else None
