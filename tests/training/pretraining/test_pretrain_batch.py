"""Batches: every token of every example is where the indices say, and rows are as full as can be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data._utils.pin_memory import pin_memory

from bert.errors import ConfigError
from bert.nn.losses import IGNORED
from tests.support.objectives import MAX_TOKENS, PAD, examples, without_spans
from training.pretraining.data import GlobalBatch
from training.pretraining.examples.stream import Cursor
from training.pretraining.pretrain_batch import collate, fill_rows

LENGTHS = st.lists(st.integers(3, MAX_TOKENS), min_size=1, max_size=12)


@given(lengths=st.lists(st.integers(1, 64), max_size=60))
def test_each_example_is_in_one_row_and_no_row_is_too_long(lengths: list[int]) -> None:
    rows = fill_rows(lengths, 64)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 64 for row in rows)
    assert sum(sum(lengths[i] for i in row) <= 32 for row in rows) <= 1  # two such rows would have been one


def test_rows_are_nearly_full() -> None:
    lengths = np.random.default_rng(0).integers(5, 128, 512).tolist()
    rows = fill_rows(lengths, 128)
    assert sum(lengths) / (len(rows) * 128) > 0.94
    assert fill_rows([128] * 3, 128) == [[0], [1], [2]]
    assert fill_rows([3, 7, 5, 5], 10) == [[1, 0], [2, 3]]


@settings(max_examples=20)
@given(lengths=LENGTHS, packed=st.booleans(), seed=st.integers(0, 999))
def test_every_token_is_found_again(lengths: list[int], packed: bool, seed: int) -> None:
    drawn = examples(seed, 40, lengths)
    batch = collate(drawn, PAD, MAX_TOKENS, packed)
    ids, segments = batch.input_ids.flatten().numpy(), batch.segment_ids.flatten().numpy()
    original, positions = batch.original_ids.flatten().numpy(), batch.position_ids.flatten().numpy()
    for example, start in zip(drawn, batch.firsts.tolist(), strict=True):
        here = slice(start, start + len(example.ids))
        assert (ids[here] == example.ids).all() and (segments[here] == example.segment_ids).all()
        assert (original[here] == example.original).all()
        assert positions[here].tolist() == list(range(len(example.ids)))
        assert batch.real.flatten()[here].all()
    assert batch.tokens == sum(lengths) == int(batch.real.sum())
    assert (ids[~batch.real.flatten().numpy()] == PAD).all()
    assert (original[batch.masked] == batch.labels.numpy()).all()


@settings(max_examples=20)
@given(lengths=LENGTHS, packed=st.booleans())
def test_a_token_sees_the_tokens_of_its_example(lengths: list[int], packed: bool) -> None:
    batch = collate(examples(0, 40, lengths), PAD, MAX_TOKENS, packed)
    rows, width = batch.input_ids.shape
    mask = None if batch.attention_mask is None else batch.attention_mask.mask(width)
    sees = (
        torch.ones(rows, width, width, dtype=torch.bool) if mask is None else mask.expand(rows, width, width)
    )
    for length, start in zip(lengths, batch.firsts.tolist(), strict=True):
        row, first = divmod(start, width)
        seen = torch.zeros(width, dtype=torch.bool)
        seen[first : first + length] = True
        assert (sees[row, first : first + length] == seen).all()
    assert sees.any(-1).all()  # padding too sees something: a softmax over nothing is NaN


def test_full_rows_need_no_mask() -> None:
    full = examples(0, 40, [MAX_TOKENS] * 3)
    assert collate(full, PAD, MAX_TOKENS, packed=True).attention_mask is None
    assert collate(full, PAD, MAX_TOKENS, packed=False).attention_mask is None
    assert collate(examples(0, 40, [7, 7]), PAD, MAX_TOKENS, packed=False).attention_mask is None


def test_examples_alone_in_their_rows_are_masked_by_key() -> None:
    rows = collate(examples(0, 40, [MAX_TOKENS, MAX_TOKENS - 1]), PAD, MAX_TOKENS, packed=True).attention_mask
    assert rows is not None
    mask = rows.mask(MAX_TOKENS)
    assert mask is not None and mask.shape == (2, 1, MAX_TOKENS) and int((~mask).sum()) == 1


@settings(max_examples=20)
@given(lengths=LENGTHS, packed=st.booleans())
def test_stretches_begin_where_examples_and_padding_do(lengths: list[int], packed: bool) -> None:
    batch = collate(examples(0, 40, lengths), PAD, MAX_TOKENS, packed)
    row_of_each = torch.arange(batch.real.numel()) // batch.real.shape[1]
    number = torch.full(batch.real.shape, -1).flatten()
    for example, (length, start) in enumerate(zip(lengths, batch.firsts.tolist(), strict=True)):
        number[start : start + length] = example
    here = torch.stack([row_of_each, number])
    first = torch.cat([torch.tensor([True]), (here[:, 1:] != here[:, :-1]).any(0)])
    assert batch.stretches.dtype == torch.int32
    assert batch.stretches.tolist() == [*first.nonzero().flatten().tolist(), batch.real.numel()]


@settings(max_examples=20)
@given(lengths=LENGTHS, packed=st.booleans())
def test_the_tokens_outside_a_span_are_next_to_it(lengths: list[int], packed: bool) -> None:
    drawn = examples(3, 40, lengths)
    batch = collate(drawn, PAD, MAX_TOKENS, packed)
    assert batch.bounded is not None and batch.borders is not None
    masked, real, k, place = set(batch.masked.tolist()), batch.real.flatten(), 0, 0
    for example in drawn:
        assert example.spans is not None
        for first, last in example.spans.tolist():
            if not example.special[[first - 1, last + 1]].any():
                assert int(batch.bounded[k]) == place
                left, right = batch.borders[k].tolist()
                at, offset = int(batch.masked[place]), int(batch.masked[place]) - left - 1
                assert (at - offset, right - left - 2) == (left + 1, last - first)
                assert left not in masked and right not in masked and real[left] and real[right]
                k += 1
            place += 1
    assert k == len(batch.bounded) == len(batch.borders)


def test_masking_without_spans_gives_none() -> None:
    batch = collate(without_spans(examples(0, 40, [9, 5])), PAD, MAX_TOKENS, packed=False)
    assert batch.bounded is None and batch.borders is None


def test_an_example_that_is_no_pair_is_ignored() -> None:
    single, pair = examples(0, 40, [9], pairs=False), examples(0, 40, [5])
    batch = collate(single + pair, PAD, MAX_TOKENS, packed=True)
    assert batch.pair_labels.tolist()[0] == IGNORED and batch.pairs == 1 and batch.examples == 2


def test_an_example_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"an example of 24 tokens must fit in max_tokens \(23\)"):
        collate(examples(0, 40, [5, 24]), PAD, 23, packed=True)


def test_the_batch_goes_to_a_device_whole() -> None:
    batch = collate(examples(0, 40, [5, 24]), PAD, MAX_TOKENS, packed=True)
    moved = batch.to(torch.device("meta"))
    assert moved.input_ids.is_meta and moved.masked.is_meta and moved.tokens == batch.tokens


def test_a_batch_from_a_worker_is_pinned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DataLoader's own function is called with a stand-in for pinning, which takes a GPU."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batch = collate(examples(0, 40, [5, 24]), PAD, MAX_TOKENS, packed=True)
    (found,), phase, cursor = pin_memory(GlobalBatch([batch], 2, Cursor(1, 2, 3)))
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(pinned) == len(tensors) >= 10
    assert (phase, cursor, found.tokens) == (2, Cursor(1, 2, 3), batch.tokens)
