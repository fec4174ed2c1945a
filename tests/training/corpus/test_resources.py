"""How much of the machine a run has used."""

import sys

import pytest

from training.corpus.resources import forget_peak_memory, peak_memory_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_a_peak_of_before_is_forgotten() -> None:
    before = peak_memory_bytes()
    held = bytearray(before + 200 * 2**20)
    high = peak_memory_bytes()
    assert high > before + 100 * 2**20
    del held
    forget_peak_memory()
    assert peak_memory_bytes() < high - 100 * 2**20
