import numpy as np

from training.pretraining.masking.base import ACTION, ORDER, uniform

GAMMA, MIX_1, MIX_2, BITS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def splitmix64(seed: int, count: int) -> list[int]:
    """The published generator, one number after another."""
    found = []
    for _ in range(count):
        seed = (seed + GAMMA) & BITS
        z = ((seed ^ (seed >> 30)) * MIX_1) & BITS
        z = ((z ^ (z >> 27)) * MIX_2) & BITS
        found.append(z ^ (z >> 31))
    return found


def test_numbers_are_those_of_splitmix64() -> None:
    assert splitmix64(1234567, 2) == [
        6457827717110365317,
        3203168211198807973,
    ]  # the generator's known answers
    found = uniform(np.full(50, 1234567, np.uint64), np.arange(50), ORDER)
    assert found.tolist() == [(z >> 32) / 2**32 for z in splitmix64(1234567, 50)]


def test_a_draw_depends_on_its_key_its_place_and_its_purpose_alone() -> None:
    keys, places = np.array([5, 9, 5], np.uint64), np.array([0, 3, 7])
    every = uniform(keys, places, ACTION)
    assert every.tolist() == [uniform(keys[i : i + 1], places[i : i + 1], ACTION)[0] for i in range(3)]
    assert not np.isin(every, uniform(keys, places, ORDER)).any()


def test_draws_are_uniform() -> None:
    keys = np.random.default_rng(0).integers(2**64, size=1000, dtype=np.uint64)
    found = uniform(np.repeat(keys, 200), np.tile(np.arange(200), 1000), ACTION)
    counts = np.histogram(found, bins=50, range=(0, 1))[0]
    assert ((counts - 4000) ** 2 / 4000).sum() < 86  # chi-square, 49 degrees of freedom, 99.9%
    assert found.min() >= 0 and found.max() < 1
