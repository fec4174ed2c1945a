"""Words, windows and decoding of entities of any label, against a slow obvious version."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert.encoding import Window
from bert.errors import InputError
from bert.tasks.ner import Entity
from bert.tasks.open_ner.decode import Choosing, candidates, decode
from bert.tasks.open_ner.inputs import Words, cuts, places, prompt_ids, windows, word_bounds
from bert.tasks.open_ner.task import OpenNerTask
from bert.tasks.prompts import room
from bert.tasks.spec import LabelPrompt
from bert.tasks.task import Floats
from tests.support.open_ner import SPEC
from tests.support.tiny import tiny_tokenizer

PROMPT = LabelPrompt(8, 9, "markerV0", 4, max_width=3, max_words=6)
TEXT, BOUNDS = "a b c d e f", np.array([(2 * n, 2 * n + 1) for n in range(6)], np.int32)
WHOLE = Window(tiny_tokenizer().single(tiny_tokenizer().pieces(["a"])[0]), 0, 6)
ODD = ["person", "place of work", "🙂", "食べ物", "<<ENT>>", "a <<SEP>> b", "[SEP]", "l'été"]


def ids(*lengths: int) -> list[NDArray[np.int32]]:
    return [np.arange(length, dtype=np.int32) for length in lengths]


def logits_of(scores: dict[tuple[int, int, int], float], words: int, labels: int) -> Floats:
    """Return the logits (W * C, K) of spans or words: start, column and label → probability."""
    found = np.full((words, labels, 3), -100.0, np.float32)
    for (word, column, label), score in scores.items():
        found[word, label, column] = np.log(score / (1 - score))
    return found.reshape(-1, 3)


def found(
    scores: dict[tuple[int, int, int], float], how: Choosing, labels: str = "XY", text: str = TEXT
) -> list[Entity]:
    rows = candidates(logits_of(scores, 6, len(labels)))
    return decode(text, BOUNDS, labels, [WHOLE], [rows], PROMPT, how)


def test_words_are_those_of_the_reference() -> None:
    text = "State-of-the-art e-mail_x 京都, l'été\u200b!"
    words = [text[start:end] for start, end in word_bounds(text)]
    assert words == ["State-of-the-art", "e-mail_x", "京都", ",", "l", "'", "été", "\u200b", "!"]


def test_a_word_without_pieces_leaves_the_others_in_their_places() -> None:
    words = Words.of([(0, 1), (1, 2), (3, 5)], ids(1, 0, 2))
    assert words.bounds.tolist() == [[0, 1], [3, 5]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(4, 20))
def test_windows_hold_every_word_and_share_some(lengths: list[int], size: int) -> None:
    lengths = [min(length, size) for length in lengths]
    found = list(cuts(lengths, size, PROMPT))
    assert found[0][0] == 0 and found[-1][1] == len(lengths)
    assert all(sum(lengths[a:b]) <= size and 0 < b - a <= PROMPT.max_words for a, b in found)
    for (a, b), (c, d) in itertools.pairwise(found):
        assert a < c <= b < d
        assert b - c <= min(PROMPT.max_width, (b - a) // 2)
        assert b - c == min(PROMPT.max_width, (b - a) // 2) or sum(lengths[c - 1 : b + 1]) > size


@given(st.lists(st.sampled_from(ODD), min_size=1, max_size=4, unique=True), st.text(max_size=60))
def test_labels_and_words_are_where_the_head_looks(labels: list[str], text: str) -> None:
    spec, tokenizer = SPEC["markerV0"], tiny_tokenizer()
    prompt = spec.label_prompt
    assert prompt is not None
    read = [
        np.array(each, np.int32)
        for each in tokenizer.ids([*labels, *(text[a:b] for a, b in word_bounds(text))])
    ]
    if not all(map(len, read[: len(labels)])):
        return
    words = Words.of(word_bounds(text), read[len(labels) :])
    before = prompt_ids(read[: len(labels)], prompt)
    for window in windows(words, before, tokenizer, spec):
        encoding = window.encoding
        assert len(encoding) <= spec.max_tokens
        at_labels, at_words = places(encoding)
        assert (encoding.ids[at_labels] == prompt.label_id).all() and len(at_labels) == len(labels)
        assert (encoding.ids == prompt.label_id).sum() == len(labels)
        assert (encoding.ids == prompt.separator_id).sum() == 1
        assert encoding.ids[at_words].tolist() == [each[0] for each in words.ids[window.start : window.stop]]
        assert OpenNerTask().output_rows(encoding) == len(labels) * (window.stop - window.start)


def test_labels_leave_a_text_a_quarter_of_the_model() -> None:
    assert room(46, SPEC["marker"]) == 16
    with pytest.raises(InputError, match="take 47 of the 64 tokens that the model reads, and may take 46"):
        room(47, SPEC["marker"])


def test_only_what_exceeds_the_threshold_is_found() -> None:
    assert found({(0, 0, 0): 0.5}, Choosing(0.5)) == []
    (entity,) = found({(0, 1, 1): 0.51}, Choosing(0.5))
    assert (entity.text, entity.label, entity.start, entity.end) == ("a b", "Y", 0, 3)
    assert entity.score == pytest.approx(0.51, abs=1e-6)


def test_an_inside_may_equal_the_threshold() -> None:
    """A model that judges words: `gliner` asks more of starts and ends than of insides."""
    half = 0.5
    rows = candidates(
        logits_of({(0, 0, 0): 0.9, (0, 2, 0): 0.9, (1, 2, 0): half, (2, 2, 0): 0.9, (2, 1, 0): 0.8}, 6, 1)
    )
    prompt = LabelPrompt(8, 9, "token_level", 4)
    (entity,) = decode(TEXT, BOUNDS, "X", [WHOLE], [rows], prompt, Choosing(0.5))
    assert entity.text == "a b c" and entity.score == pytest.approx(0.5)
    assert decode(TEXT, BOUNDS, "X", [WHOLE], [rows], prompt, Choosing(0.51)) == []


def test_neighbours_of_one_label_are_joined() -> None:
    scores = {(0, 0, 0): 0.9, (1, 1, 0): 0.8, (3, 0, 1): 0.9, (4, 0, 0): 0.7}
    assert [e.text for e in found(scores, Choosing())] == ["a", "b c", "d", "e"]
    joined = found(scores, Choosing(join=True))
    assert [(e.text, e.label) for e in joined] == [("a b c", "X"), ("d", "Y"), ("e", "X")]
    assert joined[0].score == pytest.approx(0.8, abs=1e-6)
    assert len(found(scores, Choosing(join=True), text="a-b c d e f")) == 4


SCORES = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 1)).filter(
        lambda key: key[0] + key[1] < 6
    ),
    st.sampled_from([0.3, 0.55, 0.6, 0.8, 0.95]),
    max_size=20,
)


@given(SCORES, st.booleans(), st.booleans())
def test_greedy_choice_is_that_of_the_reference(
    scores: dict[tuple[int, int, int], float], flat: bool, multi_label: bool
) -> None:
    def clash(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
        (a, b, _), (c, d, _) = one, other
        if (a, b) == (c, d):
            return not multi_label
        return not (a > d or c > b) and (flat or not ((a <= c and b >= d) or (c <= a and d >= b)))

    chosen: list[tuple[int, int, int]] = []
    for (start, width, label), score in sorted(scores.items(), key=lambda item: (-item[1], item[0])):
        span = start, start + width, label
        if score > 0.5 and not any(clash(span, other) for other in chosen):
            chosen.append(span)
    expected = [(2 * a, 2 * b + 1, "XY"[c]) for a, b, c in sorted(chosen, key=lambda span: span[0])]
    got = found(scores, Choosing(0.5, flat, multi_label))
    assert [(e.start, e.end, e.label) for e in got] == expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize("flat", [True, False])
def test_the_work_is_no_square_of_the_spans(flat: bool) -> None:
    """Side by side each would be compared with over 20,000 others, for hours."""
    words, widths, labels = 100, 12, 200
    prompt = LabelPrompt(8, 9, "markerV0", 4, max_width=widths, max_words=words)
    bounds = np.array([(2 * n, 2 * n + 1) for n in range(words)], np.int32)
    rows = [
        (n * labels + c, k, 1.0 + c / labels)
        for n in range(words)
        for k in range(min(widths, words - n))
        for c in range(labels)
    ]
    how, names = Choosing(flat=flat, multi_label=True), [str(n) for n in range(labels)]
    run = [Window(WHOLE.encoding, 0, words)]
    got = decode("a " * words, bounds, names, run, [np.array(rows, np.float32)], prompt, how)
    assert len(got) == labels * len({(each.start, each.end) for each in got})


def test_more_candidates_than_can_be_weighed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert.tasks.open_ner.decode.MAX_FOUND", 2)
    scores = {(n, 0, 0): 0.9 for n in range(3)}
    with pytest.raises(InputError, match=r"over 2 candidates above the threshold of 0\.5: raise it"):
        found(scores, Choosing())
    del scores[0, 0, 0]
    assert len(found(scores, Choosing())) == 2


def test_of_two_windows_the_better_score_counts() -> None:
    rows = [candidates(logits_of({(1, 0, 0): p}, 4, 1)) for p in (0.6, 0.9)]
    runs = [Window(WHOLE.encoding, 1, 5)] * 2
    (entity,) = decode(TEXT, BOUNDS, "X", runs, rows, PROMPT, Choosing())
    assert entity.text == "c" and entity.score == pytest.approx(0.9)
