"""Which examples an epoch draws, and how they are cut into batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.engine.batch_order import by_length, draw, epoch_batches

LENGTHS = st.lists(st.integers(3, 128), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 16), st.integers(0, 3))
def test_each_example_is_in_one_batch(lengths: list[int], batch_size: int, epoch: int) -> None:
    batches = epoch_batches(lengths, batch_size, seed=7, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert max(map(len, batches)) <= batch_size


def test_order_depends_on_seed_and_epoch_only() -> None:
    lengths = list(range(3, 203))

    def order(seed: int, epoch: int) -> list[int]:
        return [int(i) for batch in epoch_batches(lengths, 8, seed, epoch) for i in batch]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_batches_by_length_waste_under_an_eighth() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(3.3, 0.8, 5000), 4, 256).astype(int).tolist()
    batches = epoch_batches(lengths, 16, seed=0, epoch=0)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert 1 - sum(lengths) / padded < 0.125


def test_repeat_draws_whole_files_and_random_shares() -> None:
    first, second = (draw([10, 100], [2.0, 0.5], seed=0, epoch=epoch) for epoch in (0, 1))
    assert np.bincount(first, minlength=110)[:10].tolist() == [2] * 10
    assert len(first) == 20 + 50
    assert set(first[20:]) != set(second[20:])


@given(LENGTHS, st.integers(1, 600))
def test_evaluation_batches_hold_at_most_their_tokens(lengths: list[int], limit: int) -> None:
    batches = list(by_length(lengths, limit))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= limit
