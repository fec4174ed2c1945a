"""The stream: any place leads to the same batches, and an epoch holds every example once."""

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.errors import ConfigError, DataError
from tests.support.pretraining_documents import (
    FIRST,
    MASK,
    document,
    numbered,
    special_ids,
    texts,
    write_corpus,
)
from training.corpus.shards import Corpus, Document
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import MaskedExample
from training.pretraining.examples.stream import START, Cursor, ExampleStream
from training.pretraining.masking.words import TokenMasking

SPECIAL = special_ids()
SHARDS = [[[9, 7, 8], [12, 5], [6]], [[30, 4], [8, 8, 8, 8, 8]], [[5] * 12, [3, 3], [40], [2]]]
"""Three shards of documents of sentences."""

Print = tuple[Any, ...]


def shards(shapes: list[list[list[int]]]) -> list[list[Document]]:
    found, first = [], FIRST
    for shape in shapes:
        found.append(numbered(shape, first))
        first += sum(map(sum, shape))
    return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shards(SHARDS), shards(SHARDS[:2]))


def stream(
    corpus: Corpus, kind: str = "pairs", *, seed: int = 3, dupes: int = 0, rate: float = 0.3, mixed: int = 2
) -> ExampleStream:
    build, mask = BUILDERS[kind](20, SPECIAL), TokenMasking(SPECIAL, rate)
    return ExampleStream(corpus, "train", build, mask, seed, dupes, mixed)


def fingerprint(example: MaskedExample) -> Print:
    return (
        tuple(example.ids.tolist()), tuple(example.original.tolist()),
        tuple(example.positions.tolist()), example.pair_label,
    )  # fmt: skip


def prints(batches: Iterator[tuple[list[MaskedExample], Cursor]], count: int) -> list[list[Print]]:
    return [[fingerprint(e) for e in batch] for batch, _ in islice(batches, count)]


def epochs(source: ExampleStream, count: int) -> list[list[Print]]:
    """Return the examples of the first epochs."""
    found: list[list[Print]] = [[] for _ in range(count)]
    for (example,), cursor in source.batches(1):
        if cursor.epoch >= count:
            return found
        found[cursor.epoch].append(fingerprint(example))
    raise AssertionError


@pytest.fixture(scope="module")
def undisturbed(corpus: Corpus) -> dict[tuple[str, int], list[Print]]:
    return {
        (kind, dupes): [p for (p,) in prints(stream(corpus, kind, dupes=dupes).batches(1), 160)]
        for kind in BUILDERS
        for dupes in (0, 2)
    }


@settings(max_examples=40)
@given(
    kind=st.sampled_from(list(BUILDERS)),
    dupes=st.sampled_from([0, 2]),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_batches_from_any_cursor_are_the_tail_of_the_undisturbed_stream(
    corpus: Corpus, undisturbed: Any, kind: str, dupes: int, sizes: list[int]
) -> None:
    expected, done, cursor = undisturbed[kind, dupes], 0, START
    for size in sizes:
        # A new stream each time, as after a kill; the batch size changes, shards and epochs end in between.
        for batch, after in islice(stream(corpus, kind, dupes=dupes).batches(size, cursor), 2):
            known = expected[done : done + size]
            assert [fingerprint(e) for e in batch][: len(known)] == known
            assert len(batch) == size
            done, cursor = done + size, after


@settings(max_examples=40)
@given(kind=st.sampled_from(list(BUILDERS)), steps=st.lists(st.integers(0, 50), min_size=1, max_size=3))
def test_after_leads_where_reading_leads(
    corpus: Corpus, undisturbed: Any, kind: str, steps: list[int]
) -> None:
    source, cursor = stream(corpus, kind), START
    for step in steps:
        cursor = source.after(cursor, step)
    ((example,), _) = next(source.batches(1, cursor))
    assert fingerprint(example) == undisturbed[kind, 0][sum(steps)]
    assert cursor == stream(corpus, kind).after(START, sum(steps))


@pytest.mark.parametrize("kind", list(BUILDERS))
@pytest.mark.parametrize("dupes", [0, 3])
def test_an_epoch_holds_every_example_once(corpus: Corpus, kind: str, dupes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    builder = BUILDERS[kind](20, SPECIAL, 0.0)
    made = [len(builder.plan(text, rng)) for text in texts(tmp_path, shards(SHARDS))]
    for epoch in epochs(stream(corpus, kind, dupes=dupes), 2):
        if kind in ("full_sentences", "chunks", "single"):  # each token has a number of its own
            tokens = Counter(token for _, ids, _, _ in epoch for token in ids if token >= FIRST)
            assert set(tokens.values()) == {max(1, dupes)}
            assert len(tokens) == sum(sum(map(sum, shard)) for shard in SHARDS)
        elif not dupes:
            assert len({print_[1] for print_ in epoch}) == len(epoch)
            assert len(epoch) >= 0.6 * sum(made)


def test_shards_and_examples_are_shuffled_anew_each_epoch(corpus: Corpus) -> None:
    first, second = epochs(stream(corpus, "full_sentences"), 2)
    assert [p[1] for p in first] != [p[1] for p in second]
    (other, _) = epochs(stream(corpus, "full_sentences", seed=4), 2)
    assert [p[1] for p in first] != [p[1] for p in other]


def test_masks_are_fresh_each_epoch(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards([[[18]]]))
    masks = {epoch[0][0] for epoch in epochs(stream(corpus, "full_sentences"), 8)}
    assert len(masks) == 8


def test_static_masks_are_drawn_once_for_each_copy(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards([[[18], [17]]]))
    several = epochs(stream(corpus, "single", dupes=3), 4)
    assert [len(epoch) for epoch in several] == [6] * 4  # two examples, three copies
    assert len({frozenset(epoch) for epoch in several}) == 1
    assert len(set(several[0])) == 6


def test_static_pairs_are_drawn_once_for_each_copy(corpus: Corpus) -> None:
    first, second = epochs(stream(corpus, dupes=2), 2)
    assert Counter(first) == Counter(second) and first != second


def test_processes_share_a_batch(corpus: Corpus) -> None:
    whole = prints(stream(corpus).batches(12), 5)
    for world in (2, 3, 5):
        ranks = [prints(stream(corpus).batches(12, take=slice(r, None, world)), 5) for r in range(world)]
        for i, batch in enumerate(whole):
            for r in range(world):
                assert ranks[r][i] == batch[r::world]


def test_workers_share_the_batches(corpus: Corpus) -> None:
    whole, source = prints(stream(corpus).batches(7), 9), stream(corpus)
    for worker in range(3):
        mine = source.batches(7, source.after(START, worker * 7), every=3)
        assert prints(mine, 3) == whole[worker::3]


def test_a_worker_process_gets_no_text_with_the_stream(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards([[[50] * 100] * 10]))
    sent = stream(corpus)
    whole = prints(sent.batches(4), 3)
    pickled = pickle.dumps(sent)
    assert len(pickled) < 10_000  # the text is 100,000 bytes; 4,000 are the plain ids
    assert prints(pickle.loads(pickled).batches(4), 3) == whole


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
@pytest.mark.parametrize("kind", ["single", "pairs"])
def test_a_corpus_of_many_shards_does_not_use_up_file_descriptors(tmp_path: Path, kind: str) -> None:
    corpus = write_corpus(tmp_path, shards([[[5, 5]]] * 12))
    before = len(list(Path("/proc/self/fd").iterdir()))
    batches = stream(corpus, kind).batches(1)
    prints(batches, 12)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


@pytest.mark.parametrize("part", ["tokens", "documents"])
def test_a_missing_file_is_seen_before_the_first_batch(tmp_path: Path, part: str) -> None:
    corpus = write_corpus(tmp_path, shards(SHARDS))
    (tmp_path / f"train-00002.{part}").unlink()
    with pytest.raises(DataError, match=f"train-00002.{part}: cannot be read"):
        stream(corpus)


@pytest.mark.parametrize(("mixed", "mixes"), [(1, 3), (2, 2), (3, 1), (8, 1)])
def test_a_cursor_counts_epochs_mixes_and_examples(corpus: Corpus, mixed: int, mixes: int) -> None:
    source = stream(corpus, "full_sentences", mixed=mixed)
    cursors = [cursor for _, cursor in islice(source.batches(1), 60)]
    assert cursors[0] == Cursor(0, 0, 1) and cursors == sorted(set(cursors))
    assert {cursor.shard for cursor in cursors} == set(range(mixes))


def test_the_shards_of_a_mix_come_side_by_side_and_all_of_an_epoch(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards([[[8] * 6] * 4] * 5))
    each = 4 * 6 * 8

    def owners(mixed: int) -> list[int]:
        (epoch,) = epochs(stream(corpus, "single", mixed=mixed), 1)
        return [(next(token for token in ids if token >= FIRST) - FIRST) // each for _, ids, _, _ in epoch]

    alone, together = owners(1), owners(8)
    assert sorted(alone) == sorted(together)
    assert sum(a != b for a, b in pairwise(alone)) == 4  # a shard, then the next
    assert sum(a != b for a, b in pairwise(together)) > len(together) / 2


def test_held_out_examples_are_the_same_at_each_call(corpus: Corpus) -> None:
    source = stream(corpus, rate=0.5)
    first, again = ([fingerprint(e) for e in source.held_out_examples(7)] for _ in range(2))
    other = [fingerprint(e) for e in stream(corpus, seed=9).held_out_examples(100)]
    assert len(first) == 7 and first == again == other[:7]
    assert 7 < len(other) < 100  # no more than there are
    for ids, original, positions, _ in other:
        assert len(positions) == max(1, round(0.15 * len(original)))
        assert all(ids[i] == MASK or ids[i] >= FIRST for i in positions)
    assert source.held_out_examples(0) == []


def test_a_corpus_without_held_out_documents_is_said(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards(SHARDS))
    with pytest.raises(DataError, match="split 'held_out' has 0, and 2 documents are needed"):
        stream(corpus).held_out_examples(5)


@pytest.mark.parametrize("kind", list(BUILDERS))
def test_tiny_corpora_give_batches_without_end(tmp_path: Path, kind: str) -> None:
    corpus = write_corpus(tmp_path, [[document([10]), document(), document([11, 12])], []])
    batches = prints(stream(corpus, kind).batches(10), 3)
    assert [len(batch) for batch in batches] == [10] * 3


@pytest.mark.parametrize("kind", ["full_sentences", "chunks", "single", "sentence_order"])
def test_one_document_is_enough_without_next_sentence(tmp_path: Path, kind: str) -> None:
    assert len(prints(stream(write_corpus(tmp_path, shards([[[5, 6]]])), kind).batches(3), 2)) == 2


def test_one_document_is_too_few_for_next_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'train' has 1, and 2 documents are needed"):
        stream(write_corpus(tmp_path, shards([[[5, 6, 7]]])))


def test_a_random_second_segment_may_be_of_any_document_of_the_split(tmp_path: Path) -> None:
    """Each shard is planned by itself, and eight of forty lie in memory."""
    corpus = write_corpus(tmp_path, shards([[[4, 4, 4]] * 3] * 40))
    source = ExampleStream(corpus, "train", BUILDERS["pairs"](30, SPECIAL), TokenMasking(SPECIAL), 0)
    distances = Counter[int]()
    for (example,), cursor in source.batches(1):
        if cursor.epoch == 4:
            break
        if example.pair_label == 1:
            first, last = (int(example.original[place]) for place in (1, -2))
            distances[abs((first - FIRST) // 36 - (last - FIRST) // 36)] += 1
    pairs = sum(distances.values())
    assert pairs > 500
    assert distances[0] / pairs == pytest.approx(2 / 119, abs=0.02)  # two other documents of the own shard
    assert set(range(1, 30)) <= set(distances)


def test_shards_of_one_document_give_pairs(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, shards([[[5, 5]], [[6, 6], [7]], [[8, 8]]]))
    (epoch,) = epochs(stream(corpus), 1)
    assert {token for _, ids, _, _ in epoch for token in ids if token >= FIRST} >= set(range(10, 20))


def test_a_single_document_with_text_is_said(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [[document([10, 11], [12]), document()]])
    with pytest.raises(DataError, match="split 'train' has no second document with text"):
        next(stream(corpus).batches(2))


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 0, and a document is needed"):
        stream(write_corpus(tmp_path, []), "single")


def test_a_split_that_gives_no_example_is_said(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path, [[document([10])], [document(), document()]]
    )  # no sentence can be cut in two
    with pytest.raises(DataError, match="split 'train' gives no example"):
        next(stream(corpus, "sentence_order").batches(2))


@pytest.mark.parametrize("cursor", [Cursor(0, 2, 0), Cursor(0, -1, 0), Cursor(2, 0, 1000)])
def test_a_cursor_of_another_corpus_is_refused(corpus: Corpus, cursor: Cursor) -> None:
    with pytest.raises(ConfigError, match=r"must be one of the split's 2 mixes|is past the mix's"):
        next(stream(corpus).batches(2, cursor))
