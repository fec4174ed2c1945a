"""Division of the cores into slots."""

import pytest

from bert.errors import ConfigError
from service.engine.slot_layout import MAX_SLOTS_FOR_ONE_TEXT, SlotLayout, lay_out_slots


@pytest.mark.parametrize(
    ("cores", "slots", "threads", "expected"),
    [
        (1, None, None, SlotLayout(1, 1)),
        (2, None, None, SlotLayout(2, 1)),
        (8, None, None, SlotLayout(8, 1)),
        (8, 2, None, SlotLayout(2, 4)),
        (8, None, 4, SlotLayout(2, 4)),
        (8, 3, None, SlotLayout(3, 2)),
        (2, 1, 2, SlotLayout(1, 2)),
    ],
)
def test_cores_are_divided(cores: int, slots: int | None, threads: int | None, expected: SlotLayout) -> None:
    assert lay_out_slots(cores, slots, threads) == expected


def test_a_gpu_computes_one_batch_while_the_next_is_prepared() -> None:
    assert lay_out_slots(16, on_gpu=True) == lay_out_slots(1, on_gpu=True) == SlotLayout(2, 1)
    assert lay_out_slots(16, 3, on_gpu=True) == SlotLayout(3, 1)


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine_slots \(2\) x engine_threads_per_slot \(2\).* 2 cores"):
        lay_out_slots(2, 2, 2)


def test_only_slots_of_one_thread_are_combined() -> None:
    assert lay_out_slots(1).slots_for_one_text == 1
    assert lay_out_slots(2).slots_for_one_text == 2
    assert lay_out_slots(64).slots_for_one_text == MAX_SLOTS_FOR_ONE_TEXT
    assert lay_out_slots(8, 2).slots_for_one_text == 1, "its slots have four threads already"
