"""Packing against a slow, obvious packer, and what a packing must hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert import packing
from bert.packing import (
    PADDED_SHARE,
    PADDED_TOKENS,
    CostModel,
    Packing,
    PackingRules,
    RowRun,
    _splits,
    flat_groups,
    pack,
    plan_runs,
    row_width,
)

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=60)


def places(packing: Packing, lengths: list[int]) -> list[list[int]]:
    return [list(range(s, s + n)) for s, n in zip(packing.starts, lengths, strict=True)]


def slow_pack(lengths: list[int], cost: CostModel, rules: PackingRules) -> Packing:
    """Try every number of rows, and for each text every start in each row."""

    def may_start(at: int, length: int) -> bool:
        block = rules.block_tokens
        crosses = block and at // block != (at + length - 1) // block
        return at % rules.align_tokens == 0 and (not crosses or at % block == 0)

    found: list[Packing] = []
    for count in range(1, len(lengths) + 1):
        ends, placed = [0] * count, {}
        for text in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
            row = ends.index(min(ends))
            start = next(at for at in range(ends[row], 10_000) if may_start(at, lengths[text]))
            ends[row] = start + lengths[text]
            placed[text] = row, start
        width = row_width(max(ends), rules)
        starts = (placed[text][0] * width + placed[text][1] for text in range(len(lengths)))
        found.append(Packing(count, width, tuple(starts)))
    return min(found, key=lambda packing: packing_time(packing, cost))


def packing_time(packing: Packing, cost: CostModel) -> float:
    seen = cost.windowed * min(packing.width, cost.window_tokens) + (1 - cost.windowed) * packing.width
    if packing.width <= cost.window_tokens:
        seen = packing.width
    return packing.places * (1 + seen / cost.attention_width)


def plan_time(runs: list[RowRun], cost: CostModel) -> float:
    return sum(cost.run_tokens + packing_time(run.packing, cost) for run in runs)


COSTS = st.builds(
    CostModel, st.floats(50, 5000), st.floats(0, 100), st.sampled_from([0.0, 0.5, 1.0]), st.just(64.0)
)
RULES = st.builds(PackingRules, st.sampled_from([1, 4]), st.sampled_from([0, 32]))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), COSTS, RULES)
def test_the_packer_places_texts_as_the_slow_one(
    lengths: list[int], cost: CostModel, rules: PackingRules
) -> None:
    assert packing_time(pack(lengths, cost, rules), cost) == pytest.approx(
        packing_time(slow_pack(lengths, cost, rules), cost)
    )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), COSTS, RULES)
def test_runs_take_no_longer_than_one_and_hold_each_text_once(
    lengths: list[int], cost: CostModel, rules: PackingRules
) -> None:
    runs = plan_runs(lengths, cost, rules)
    assert sorted(n for run in runs for n in run.texts) == list(range(len(lengths)))
    assert all(len(run.packing.starts) == len(run.texts) for run in runs)
    one = [RowRun(range(len(lengths)), slow_pack(lengths, cost, rules))]
    assert plan_time(runs, cost) <= plan_time(one, cost) * (1 + 1e-9)
    order = sorted(lengths, reverse=True)
    bounds = dict((count, bound) for bound, count in _splits(order, cost, rules))
    for count, bound in bounds.items():
        parts = [RowRun(part, slow_pack(list(part), cost, rules)) for part in (order[:count], order[count:])]
        assert bound <= plan_time(parts, cost) * (1 + 1e-9)


def test_one_long_text_among_short_ones_gets_a_run_of_its_own() -> None:
    lengths = [12, 201, 20, 9, 15, 22, 30, 14]
    runs = plan_runs(lengths, CostModel(550.0, 14.0))
    assert [list(run.texts) for run in runs] == [[1], [6, 5, 2, 4, 7, 0, 3]]
    assert len(plan_runs(lengths, CostModel(550.0, 1000.0))) == 1


def test_long_texts_lie_side_by_side_where_every_layer_sees_a_window_only() -> None:
    lengths = [8000, *[500] * 16]
    whole, windows = CostModel(2000.0), CostModel(2000.0, 10.0, 1.0, 384.0)
    assert [run.packing.rows * run.packing.width for run in plan_runs(lengths, whole)] == [8000, 8000]
    (run,) = plan_runs(lengths, windows)
    assert (run.packing.rows, run.packing.width) == (2, 8000)


def test_more_products_of_scores_make_narrower_rows() -> None:
    assert CostModel.for_model(768, 12, {"scores": 3}).attention_width == pytest.approx(2000 / 3)
    cost = CostModel.for_model(768, 22, {"window_layers": 14, "window_tokens": 384})
    # Measured: 2.2 ms a token at 128, 2.6 at 1,024, 3.9 at 4,096, 5.6 at 8,192.
    times = [cost.token(tokens) / cost.token(128) for tokens in (1024, 4096, 8192)]
    assert times == pytest.approx([1.18, 1.77, 2.55], rel=0.1)


def test_a_batch_of_many_texts_is_not_planned_for_longer_than_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = list[int]()
    fill = packing._fill_evenly

    def counted(lengths: Sequence[int], order: Sequence[int], rows: int, rules: PackingRules) -> Packing:
        tried.append(rows)
        return fill(lengths, order, rows, rules)

    monkeypatch.setattr(packing, "_fill_evenly", counted)
    plan_runs([3 + text * 7 % 10 for text in range(1000)], CostModel(550.0, 14.0), PackingRules(4, 512))
    assert len(tried) < 250  # each takes 1 ms, and the texts 500


def test_lengths_that_just_miss_even_rows_get_them_all_the_same() -> None:
    """Two rows of 212 tokens cost less than one of 418, and none of these texts fits in 209 beside another."""
    assert pack([140, 72, 206]) == Packing(2, 212, (212, 352, 0))


@given(st.integers(0, 500), st.integers(1, 200), st.sampled_from([1, 4, 8]), st.sampled_from([0, 32, 128]))
def test_a_text_starts_at_the_first_place_that_the_rules_allow(
    used: int, tokens: int, align: int, block: int
) -> None:
    def allowed(start: int) -> bool:
        crosses = block and start // block != (start + tokens - 1) // block
        return start % align == 0 and (not crosses or start % block == 0)

    slow = next(start for start in range(used, used + 1000) if allowed(start))
    assert PackingRules(align, block).start(used, tokens) == slow


@given(LENGTHS)
def test_every_token_has_a_place_of_its_own(lengths: list[int]) -> None:
    packing = pack(lengths)
    used = [place for text in places(packing, lengths) for place in text]
    assert len(set(used)) == len(used) == sum(lengths)
    assert max(used) < packing.places


@given(LENGTHS)
def test_no_text_is_split_over_rows(lengths: list[int]) -> None:
    packing = pack(lengths)
    assert all(len({place // packing.width for place in text}) == 1 for text in places(packing, lengths))


@given(LENGTHS)
def test_the_fullest_row_is_full_and_no_row_is_empty(lengths: list[int]) -> None:
    packing = pack(lengths)
    ends = [start % packing.width + length for start, length in zip(packing.starts, lengths, strict=True)]
    assert max(ends) == packing.width
    assert {start // packing.width for start in packing.starts} == set(range(packing.rows))


@given(LENGTHS)
def test_packing_costs_no_more_than_padding_to_the_longest(lengths: list[int]) -> None:
    width = max(lengths)
    padded = Packing(len(lengths), width, tuple(width * n for n in range(len(lengths))))
    assert packing_time(pack(lengths), CostModel()) <= packing_time(padded, CostModel())


@given(LENGTHS)
def test_a_wide_row_is_chosen_when_attention_is_free(lengths: list[int]) -> None:
    assert pack(lengths, CostModel(1e12)).places <= pack(lengths, CostModel(1.0)).places


def test_texts_of_unlike_lengths_waste_little() -> None:
    lengths = np.random.default_rng(0).lognormal(3.4, 0.9, 40).astype(int).clip(4, 256).tolist()
    packing = pack(lengths)
    assert sum(lengths) / packing.places > 0.9
    assert sum(lengths) / (len(lengths) * max(lengths)) < 0.4  # what padding to the longest would use


def test_one_text_is_one_row_of_its_own_length() -> None:
    assert pack([13]) == Packing(1, 13, (0,))


def test_nothing_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="no text"):
        pack([])


@given(st.lists(st.integers(1, 512), min_size=1, max_size=3000), st.sampled_from([0, 2**16, 2**22]))
def test_no_run_on_a_gpu_has_much_more_scratch_than_texts(lengths: list[int], max_pairs: int) -> None:
    groups = flat_groups(lengths, max_pairs)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        inside = [lengths[place] for place in group]
        assert len(inside) * max(inside) <= PADDED_SHARE * sum(inside) + PADDED_TOKENS
        assert len(inside) == 1 or not max_pairs or len(inside) * max(inside) ** 2 <= max_pairs


def test_usual_batches_on_a_gpu_are_one_run_in_their_order() -> None:
    lengths = np.random.default_rng(0).lognormal(3.4, 0.9, 1000).astype(int).clip(4, 256).tolist()
    assert flat_groups(lengths[:100]) == [list(range(100))]
    assert len(flat_groups(lengths)) <= 3
    assert len(flat_groups([512] + [8] * 8000)) == 2
    # The largest batch that is tried at start, and one of long documents.
    assert len(flat_groups([512] * 128, max_pairs=2**26)) == 1
    assert len(flat_groups([8192] * 8, max_pairs=2**26)) == 8
    assert flat_groups([4096, 8192, 4096, 30], max_pairs=2**26) == [[1], [0, 2, 3]]
