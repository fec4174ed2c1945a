"""Answers from the start and end logits of windows."""

import math
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special

from bert.tasks import spans
from bert.tasks.spans import Answer
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer, Window
from tests.support.reading import AWKWARD_TEXTS, MARKED_TEXTS, character_tokenizer, read
from tests.support.tokenizers import KINDS, backend_of

TOKENIZER = character_tokenizer()
QUESTION = read(TOKENIZER, "who ?")
V1 = TaskSpec("qa", max_tokens=64, stride=16, max_answer_tokens=5, n_best=20)
V2 = replace(V1, allows_no_answer=True)
Logits = list[NDArray[np.float32]]


def windows_of(context: str, max_tokens: int = 64, stride: int = 16) -> list[Window]:
    return TOKENIZER.windows(read(TOKENIZER, context), max_tokens, stride, prefix=QUESTION)


def random_logits(windows: list[Window], seed: int, *, coarse: bool = False) -> Logits:
    """Return normal logits, or whole numbers, so that many spans score the same."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(0, 2, (len(window.encoding), 2)) for window in windows]
    return [(np.round(r) if coarse else r).astype(np.float32) for r in rows]


def logits_at(windows: list[Window], *peaks: tuple[int, int, int, float]) -> Logits:
    """Return zeros but for peaks (window, start token, end token, height of each)."""
    logits = [np.zeros((len(window.encoding), 2), np.float32) for window in windows]
    for window, start, end, height in peaks:
        logits[window][start, 0] = logits[window][end, 1] = height
    return logits


def all_spans(windows: list[Window], logits: Logits, longest: int) -> list[tuple[float, int, int]]:
    """Return every span that may be an answer as (score, start, end), best first: the slow obvious way."""

    def surroundings(index: int, piece: int) -> float:
        start, stop = windows[index].start, windows[index].stop
        return min(piece - start, stop - 1 - piece) + 0.01 * (stop - start) if start <= piece < stop else -1.0

    found: dict[tuple[int, int], float] = {}
    for index, (window, rows) in enumerate(zip(windows, logits, strict=True)):
        inside = [t for t, s in enumerate(window.encoding.sequence_ids) if s == 1]
        for start in inside:
            piece = window.start + start - inside[0]
            if index != max(range(len(windows)), key=lambda i, p=piece: surroundings(i, p)):  # type: ignore[misc]
                continue
            for end in inside:
                if start <= end < start + longest:
                    offsets = window.encoding.offsets
                    key = int(offsets[start, 0]), int(offsets[end, 1])
                    score = float(rows[start, 0]) + float(rows[end, 1])
                    found[key] = max(score, found.get(key, -math.inf))
    return sorted(((score, *key) for key, score in found.items()), key=lambda s: (-s[0], s[1], s[2]))


def slow_null(logits: Logits) -> float:
    return min(float(rows[0, 0]) + float(rows[0, 1]) for rows in logits)


TEXTS = st.integers(1, 40).map(lambda n: " ".join(f"w{i}" for i in range(n)))
CUTS = st.tuples(st.integers(8, 40), st.integers(0, 20))


@given(TEXTS, CUTS, st.integers(0, 999), st.booleans(), st.integers(1, 9), st.integers(1, 25))
def test_the_n_best_spans_are_those_of_the_slow_way(
    context: str, cut: tuple[int, int], seed: int, coarse: bool, longest: int, n_best: int
) -> None:
    windows = windows_of(context, *cut)
    logits = random_logits(windows, seed, coarse=coarse)
    spec = replace(V1, max_answer_tokens=longest, n_best=n_best)
    answer = spans.decode(context, windows, logits, spec, top_k=n_best)
    expected = all_spans(windows, logits, longest)[:n_best]
    assert answer.best is not None
    found = [answer.best, *answer.alternatives]
    assert [(s.start, s.end) for s in found] == [(start, end) for _, start, end in expected]
    shares = special.softmax([score for score, _, _ in expected])
    assert [s.score for s in found] == pytest.approx(shares.tolist(), abs=1e-6)


@given(TEXTS, CUTS, st.integers(0, 999), st.floats(-5, 5))
def test_no_answer_competes_with_the_spans(
    context: str, cut: tuple[int, int], seed: int, threshold: float
) -> None:
    windows = windows_of(context, *cut)
    logits = random_logits(windows, seed)
    answer = spans.decode(context, windows, logits, replace(V2, null_threshold=threshold))
    scores = [score for score, _, _ in all_spans(windows, logits, V2.max_answer_tokens)[: V2.n_best]]
    null = slow_null(logits)
    shares = special.softmax([*scores, null])
    assert answer.null_margin == pytest.approx(null - scores[0])
    assert answer.no_answer_score == pytest.approx(shares[-1], abs=1e-6)
    assert (answer.answer is None) == (answer.null_margin > threshold)
    assert answer.score == pytest.approx(shares[-1] if answer.answer is None else shares[0], abs=1e-6)


@given(st.sampled_from(AWKWARD_TEXTS), CUTS, st.integers(0, 999))
def test_offsets_give_back_the_text_in_any_script(context: str, cut: tuple[int, int], seed: int) -> None:
    windows = windows_of(context, *cut)
    answer = spans.decode(context, windows, random_logits(windows, seed), V1, top_k=30)
    assert answer.best is not None
    found = [answer.best, *answer.alternatives]
    for span in found:
        assert context[span.start : span.end] == span.text
        assert span.text == span.text.strip() != ""
    assert len({(s.start, s.end) for s in found}) == len(found)


def test_an_answer_that_ends_in_a_marked_letter_keeps_its_mark() -> None:
    context = "un cafe\u0301 noir"
    windows = windows_of(context)
    first = len(QUESTION) + 2
    answer = spans.decode(context, windows, logits_at(windows, (0, first + 2, first + 5, 9.0)), V1)
    assert (answer.answer, answer.start, answer.end) == ("cafe\u0301", 3, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", MARKED_TEXTS)
def test_no_answer_ends_before_a_mark(kind: str, context: str) -> None:
    tokenizer = Tokenizer(backend_of(kind))
    windows = tokenizer.windows(read(tokenizer, context), 64, 16, prefix=read(tokenizer, "who?"))
    answer = spans.decode(context, windows, random_logits(windows, 7), replace(V1, n_best=200), top_k=200)
    assert answer.best is not None
    found = [answer.best, *answer.alternatives]
    for span in found:
        assert context[span.start : span.end] == span.text
        assert unicodedata.category(context[span.end : span.end + 1] or " ") not in ("Mn", "Me")
    assert len({(span.start, span.end) for span in found}) == len(found)


def test_the_question_is_never_the_answer() -> None:
    windows = windows_of("went went went")
    answer = spans.decode("went went went", windows, logits_at(windows, (0, 1, 2, 99.0)), V1)
    assert answer.answer == "went"


def test_the_end_never_comes_before_the_start() -> None:
    windows = windows_of("went london went")
    first = len(QUESTION) + 2
    answer = spans.decode("went london went", windows, logits_at(windows, (0, first + 2, first, 9.0)), V1)
    assert answer.start is not None and answer.end is not None and answer.start < answer.end


def test_an_answer_is_not_longer_than_asked() -> None:
    context = " ".join(["went"] * 9)
    windows = windows_of(context)
    first = len(QUESTION) + 2
    logits = logits_at(windows, (0, first, first + 8, 9.0))
    assert spans.decode(context, windows, logits, V1, max_answer_tokens=9).answer == context
    shorter = spans.decode(context, windows, logits, V1)
    assert shorter.answer is not None and len(shorter.answer.split()) <= V1.max_answer_tokens


def test_a_span_is_counted_from_the_window_with_most_context_only() -> None:
    context = " ".join(f"{chr(97 + i)}" for i in range(20))
    windows = windows_of(context, max_tokens=len(QUESTION) + 3 + 12, stride=6)
    first = len(QUESTION) + 2
    # Piece 11 is the last of the first window and lies in the middle of the second.
    answer = spans.decode(context, windows, logits_at(windows, (0, first + 11, first + 11, 99.0)), V1)
    assert answer.answer != "l"
    answer = spans.decode(context, windows, logits_at(windows, (1, first + 5, first + 5, 99.0)), V1)
    assert answer.answer == "l"


def test_no_answer_has_to_win_in_every_window() -> None:
    context = " ".join(["went"] * 40)
    windows = windows_of(context, max_tokens=20, stride=4)
    logits = logits_at(windows, *((i, 0, 0, 9.0) for i in range(len(windows))))
    assert spans.decode(context, windows, logits, V2).answer is None
    logits[1][0] = -9.0
    assert spans.decode(context, windows, logits, V2).answer is not None


def test_equal_scores_give_the_first_and_shortest_span() -> None:
    windows = windows_of("went went went went")
    answer = spans.decode("went went went went", windows, logits_at(windows), V1, top_k=3)
    assert (answer.start, answer.end) == (0, 4)
    assert [(s.start, s.end) for s in answer.alternatives] == [(0, 9), (0, 14)]


def test_a_model_that_always_answers_has_no_score_for_none() -> None:
    windows = windows_of("went london")
    logits = logits_at(windows, (0, 0, 0, 99.0))
    answer = spans.decode("went london", windows, logits, V1)
    assert answer.answer is not None
    assert answer.no_answer_score == 0.0
    assert answer.null_margin == pytest.approx(198.0)


def test_two_pieces_over_one_character_give_its_span_once() -> None:
    windows = windows_of("a b c")
    offsets = windows[0].encoding.offsets
    offsets[-3] = offsets[-4]  # "b" over "a", as a normaliser that turns one character into two leaves them
    answer = spans.decode("a b c", windows, logits_at(windows), V1, top_k=20)
    found = [(s.start, s.end) for s in (answer.best, *answer.alternatives) if s is not None]
    assert found == [(0, 1), (0, 5), (4, 5)]


@pytest.mark.parametrize("spec", [V1, V2])
def test_an_empty_context_has_no_answer(spec: TaskSpec) -> None:
    windows = windows_of("  ")
    answer = spans.decode("  ", windows, random_logits(windows, 0), spec, top_k=3)
    assert answer == Answer(None, 1.0, 1.0, (), None, math.inf)


@given(TEXTS, st.integers(0, 999), st.floats(0, 1), st.floats(-9, 9))
def test_a_threshold_decides_on_the_probability_of_no_answer(
    context: str, seed: int, threshold: float, null_threshold: float
) -> None:
    windows = windows_of(context)
    logits, spec = random_logits(windows, seed), replace(V2, null_threshold=null_threshold)
    plain = spans.decode(context, windows, logits, spec, top_k=4)
    answer = spans.decode(context, windows, logits, spec, top_k=4, no_answer_threshold=threshold)
    assert (answer.answer is None) == (answer.no_answer_score > threshold)
    assert (answer.no_answer_score, answer.best) == (plain.no_answer_score, plain.best)
    best_first = [plain.best, *(span for span in plain.alternatives if span != plain.best)]
    shown = [*([] if answer.answer is None else [answer.best]), *answer.alternatives]
    assert shown[:3] == best_first[:3]


def test_a_threshold_of_1_always_gives_an_answer_and_0_none_that_is_possible() -> None:
    windows = windows_of("went london")
    logits = logits_at(windows, (0, 0, 0, 999.0))
    sure = spans.decode("went london", windows, logits, V2, no_answer_threshold=1.0)
    assert (sure.answer, sure.no_answer_score) == ("went", 1.0)
    assert (
        spans.decode("went london", windows, logits_at(windows), V2, no_answer_threshold=0.0).answer is None
    )
    blank = windows_of("  ")
    assert spans.decode("  ", blank, random_logits(blank, 0), V2, no_answer_threshold=1.0).answer is None


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_top_k_counts_the_answer_itself_or_none(top_k: int) -> None:
    windows = windows_of("went london")
    for peak, wins in ((99.0, None), (-99.0, "went")):
        answer = spans.decode("went london", windows, logits_at(windows, (0, 0, 0, peak)), V2, top_k=top_k)
        assert answer.answer == wins
        assert len(answer.alternatives) == min(top_k - 1, 3 if wins is None else 2)


@given(TEXTS, st.integers(0, 999), st.integers(1, 60), st.booleans())
def test_scores_do_not_depend_on_how_many_are_asked_for(
    context: str, seed: int, top_k: int, knows_of_none: bool
) -> None:
    windows = windows_of(context)
    logits, spec = random_logits(windows, seed), replace(V1, n_best=7, allows_no_answer=knows_of_none)
    one, some = (spans.decode(context, windows, logits, spec, top_k=k) for k in (1, top_k))
    assert replace(some, alternatives=()) == one
    assert len(some.alternatives) < top_k and len(some.alternatives) <= spec.n_best


def test_more_alternatives_than_n_best_do_not_come() -> None:
    context = " ".join(["went"] * 30)
    windows = windows_of(context)
    answer = spans.decode(context, windows, random_logits(windows, 0), replace(V1, n_best=3), top_k=10)
    assert len(answer.alternatives) == 2
    assert answer.score + sum(span.score for span in answer.alternatives) == pytest.approx(1)


def test_logits_that_do_not_fit_the_windows_are_refused() -> None:
    windows = windows_of("went")
    with pytest.raises(ValueError, match="1 windows but 0 arrays"):
        spans.decode("went", windows, [], V1)
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        spans.decode("went", windows, [np.zeros((3, 2), np.float32)], V1)
