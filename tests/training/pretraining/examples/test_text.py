import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pretraining_documents import CLS, SEP, document, numbered, special_ids, taken
from training.pretraining.examples.text import ExampleRanges, Examples, Text, ranges


def examples(segments: bool, separators: int = 1, second_segment: int = 1) -> Examples:
    text = Text.of([document([10, 11, 12], [13, 14], continues=[11, 13]), document([20, 21], continues=[20])])
    plan = ExampleRanges()
    plan.add([(0, 2), (3, 5)], label=1)
    plan.add([(5, 7)])
    return Examples(
        text,
        special_ids()._replace(separators=separators, second_segment=second_segment),
        plan,
        segments=segments,
    )


def test_an_example_is_pieces_between_special_tokens() -> None:
    first, second = taken(examples(segments=True))
    assert first.ids.tolist() == [CLS, 10, 11, SEP, 13, 14, SEP]
    assert first.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert first.special.tolist() == [True, False, False, True, False, False, True]
    assert (first.pair_label, second.pair_label) == (1, -1)
    assert second.ids.tolist() == [CLS, 20, 21, SEP]
    assert [a.dtype for a in (first.ids, first.segment_ids, first.continues, first.special)] == [
        np.int32, np.int8, np.bool_, np.bool_
    ]  # fmt: skip


def test_robertas_pairs_have_two_separators_and_no_segments() -> None:
    first, second = taken(examples(segments=True, separators=2, second_segment=0))
    assert first.ids.tolist() == [CLS, 10, 11, SEP, SEP, 13, 14, SEP]
    assert first.special.tolist() == [True, False, False, True, True, False, False, True]
    assert not first.segment_ids.any()
    assert second.ids.tolist() == [CLS, 20, 21, SEP]
    documents, _ = taken(examples(segments=False, separators=2))
    assert documents.ids.tolist() == [CLS, 10, 11, SEP, 13, 14, SEP]


def test_a_piece_that_starts_inside_a_word_starts_a_word() -> None:
    first, second = taken(examples(segments=True))
    assert first.continues.tolist() == [False, False, True, False, False, False, False]
    assert not second.continues.any()


def test_without_segments_all_ids_are_0() -> None:
    assert not taken(examples(segments=False))[0].segment_ids.any()


def test_examples_come_in_the_order_asked_for() -> None:
    both = examples(segments=True)
    assert [e.ids.tolist() for e in both.take(np.array([1, 0, 1]))] == [
        taken(both)[i].ids.tolist() for i in (1, 0, 1)
    ]
    assert both.take(np.array([], np.int64)) == []


def test_empty_sentences_and_documents_are_left_out() -> None:
    text = Text.of([document(), document([], [10], []), document([]), document([11], [12])])
    assert text.tokens.tolist() == [10, 11, 12]
    assert text.sentences == [0, 1, 2, 3]
    assert text.documents == [0, 1, 3]
    assert Text.of([]).document_count == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ranges_are_arange_after_arange(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pairs], np.int64)
    stops = starts + np.array([length for _, length in pairs], np.int64)
    expected = [i for start, length in pairs for i in range(start, start + length)]
    assert ranges(starts, stops).tolist() == expected


def test_documents_lie_side_by_side() -> None:
    text = Text.of(numbered([[3, 2], [1]]))
    assert text.tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert (text.sentences, text.documents) == ([0, 3, 5, 6], [0, 2, 3])
