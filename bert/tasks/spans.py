"""Logits of tokens to the answer of a question: the best spans over all windows, and whether there is one.

The rules are those of google-research/bert's `run_squad.py`, but for two: the n best spans are found exactly,
not only among the n best starts and ends, and an answer is a slice of the original text.
T tokens of a window, n pieces of the context in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Window, owned_pieces
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats, softmax
from bert.text.offsets import MarkEnds, span_bounds

Indices = NDArray[np.intp]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the context, its [start:end] in code points, and its share of probability."""

    context: str = field(repr=False)
    start: int
    end: int
    score: float

    @property
    def text(self) -> str:
        """Return the piece, cut out anew: the spans of one context may be many times as long as it is."""
        return self.context[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question; `answer`, `start` and `end` are None where the text has none."""

    span: Span | None
    """The answer; None where the text has none."""
    score: float
    """Probability among the n best spans and, where the model may give none, "no answer"."""
    no_answer_score: float
    alternatives: tuple[Span, ...]
    """The spans that come next, at most top_k - 1."""
    best: Span | None
    """The best span, also where no answer wins; None if the context is empty."""
    null_margin: float
    """Logits of no answer minus those of `best`; by the spec's rule the answer is None over `spec.null_threshold`."""

    @property
    def answer(self) -> str | None:
        """Return the text of the answer, cut out anew."""
        return self.span.text if self.span else None

    @property
    def start(self) -> int | None:
        """Return where the answer starts."""
        return self.span.start if self.span else None

    @property
    def end(self) -> int | None:
        """Return where the answer ends."""
        return self.span.end if self.span else None


def decode(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[Floats],
    spec: TaskSpec,
    top_k: int = 1,
    max_answer_tokens: int | None = None,
    no_answer_threshold: float | None = None,
    mark_ends: MarkEnds | None = None,
) -> Answer:
    """Answer a question from the start and end logits (T_i, 2) of each window over its context.

    Spans hold at most `max_answer_tokens` pieces (None: the spec's). Probabilities are shares among the
    `spec.n_best` spans, so that they do not depend on `top_k`, of which more than `n_best` gives no more. Of equal
    scores the span that begins, then the one that ends, first wins. The text has no answer where the probability of
    none is over `no_answer_threshold`; None takes the spec's rule. `mark_ends` are those of the context, for callers
    with several questions about it. Raises ValueError for logits that do not fit.
    """
    longest = spec.max_answer_tokens if max_answer_tokens is None else max_answer_tokens
    _check(windows, logits)
    null = min(float(scores[0, 0]) + float(scores[0, 1]) for scores in logits)
    spans = _n_best(mark_ends or MarkEnds(context), windows, logits, spec.n_best, longest)
    competing = [*spans.values(), *([null] if spec.allows_no_answer or not spans else [])]
    shares = softmax(np.array(competing)).tolist()
    found = tuple(
        Span(context, start, end, share)
        for (start, end), share in zip(spans, shares, strict=False)  # the last share may be that of no answer
    )
    no_answer = shares[-1] if len(shares) > len(found) else 0.0
    best, margin = (found[0], null - competing[0]) if found else (None, math.inf)
    if no_answer_threshold is None:
        has_none = spec.allows_no_answer and margin > spec.null_threshold
    else:
        has_none = no_answer > no_answer_threshold
    if best is None or has_none:
        return Answer(None, no_answer, no_answer, found[: top_k - 1], best, margin)
    return Answer(best, best.score, no_answer, found[1:top_k], best, margin)


def _n_best(
    mark_ends: MarkEnds, windows: Sequence[Window], logits: Sequence[Floats], n_best: int, longest: int
) -> dict[tuple[int, int], float]:
    """Return the n best spans as {(start, end) in code points: start logit + end logit}, best first."""
    parts = [
        _window_spans(mark_ends, window, scores, owned, n_best, longest)
        for window, scores, owned in zip(windows, logits, owned_pieces(windows), strict=True)
    ]
    totals, starts, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((ends, starts, -totals))
    best_first = (column[order].tolist() for column in (totals, starts, ends))
    spans: dict[tuple[int, int], float] = {}
    for total, start, end in zip(*best_first, strict=True):
        if end > start:
            spans.setdefault((start, end), total)
        if len(spans) == n_best:
            break
    return spans


def _window_spans(
    mark_ends: MarkEnds,
    window: Window,
    logits: Floats,
    owned: NDArray[np.bool_],
    n_best: int,
    longest: int,
) -> tuple[Scores, Indices, Indices]:
    """Return one window's best spans: scores, starts and ends in code points, (M,) each, M about n_best.

    A span counts only where this window owns its first piece. Several pairs of pieces are the same span where a
    character is written in several pieces or a blank in one, so pairs are taken until there are n_best spans.
    """
    first = window.first_token
    start_logits = np.where(owned, logits[first:-1, 0], -np.inf).astype(np.float64)  # (n,)
    end_logits = logits[first:-1, 1].astype(np.float64)  # (n,)
    bounds_from, bounds_to = span_bounds(window.encoding.offsets[first:-1])
    bounds_to = mark_ends.after(bounds_to)
    pairs = n_best
    while True:
        totals, starts, ends = _best_pairs(start_logits, end_logits, pairs, longest)
        characters = bounds_from[starts], bounds_to[ends]
        pairs *= 2
        spans = {
            (start, end) for start, end in zip(*(c.tolist() for c in characters), strict=True) if end > start
        }
        if len(totals) < pairs // 2 or len(spans) >= n_best:
            return totals, *characters


def _best_pairs(
    start_logits: Scores, end_logits: Scores, count: int, longest: int
) -> tuple[Scores, Indices, Indices]:
    """Return scores, first and last pieces, (M,) each, of the best pairs: `count`, all equal to the last, or all.

    They begin at the `count` pieces whose best span is best, so only those are looked at closely.
    """
    starts = _top(start_logits + _forward_max(end_logits, longest), count)  # (S,)
    width = min(longest, len(end_logits))
    ahead = np.concatenate([end_logits, np.full(longest, -np.inf)])
    lengths = np.arange(width)
    totals = start_logits[starts, None] + ahead[starts[:, None] + lengths]  # (S, width)
    kept = _top(totals.ravel(), count)
    firsts = starts[kept // max(width, 1)]
    return totals.ravel()[kept], firsts, firsts + lengths[kept % max(width, 1)]


def _top(scores: Scores, count: int) -> Indices:
    """Return the indices of the `count` highest scores and of all equal to the lowest of them; never -inf."""
    lowest = np.partition(scores, -count)[-count] if len(scores) > count else -np.inf
    return np.flatnonzero((scores >= lowest) & (scores > -np.inf))


def _forward_max(values: Scores, width: int) -> Scores:
    """Return for each position the highest of the `width` values that begin there, (n,)."""
    highest, covered = values.copy(), 1
    while covered < min(width, len(values)):
        step = min(covered, width - covered)
        np.maximum(highest[:-step], highest[step:], out=highest[:-step])
        covered += step
    return highest


def _check(windows: Sequence[Window], logits: Sequence[Floats]) -> None:
    if len(windows) != len(logits) or not windows:
        raise ValueError(f"{len(windows)} windows but {len(logits)} arrays of logits; at least one is needed")
    for window, scores in zip(windows, logits, strict=True):
        if scores.shape != (len(window.encoding), 2):
            raise ValueError(f"logits have shape {scores.shape}; {(len(window.encoding), 2)} is needed")
