"""Packing against a slow, obvious packer, and what each layout's inputs must hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert import packing
from bert.encoding import Encoding
from bert.graph_inputs import Floats, Ints, Packer, flat_inputs, lone_inputs, row_inputs, split
from bert.packing import (
    MASKS_TAILS,
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


def encoding(length: int, seed: int = 0) -> Encoding:
    ids = np.random.default_rng(seed).integers(1, 1000, length).astype(np.int32)
    segments = (np.arange(length) > length // 2).astype(np.int32)
    return Encoding(
        ids, segments, np.zeros((length, 2), np.int32), np.arange(length, dtype=np.int32), segments
    )


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
    return packing.places * (1 + packing.width / cost.attention_width)


def plan_time(runs: list[RowRun], cost: CostModel) -> float:
    return sum(cost.run_tokens + packing_time(run.packing, cost) for run in runs)


def slow_inputs(
    encodings: Sequence[Encoding], packing: Packing, heads: Sequence[list[int]]
) -> dict[str, list[int]]:
    """Write one token after the other."""
    inputs = {name: [0] * packing.places for name in ("input_ids", "segment_ids", "position_ids")}
    inputs |= {"text_ids": [-1] * packing.places, "positions": []}
    for number, (text, start, head) in enumerate(zip(encodings, packing.starts, heads, strict=True)):
        for place in range(len(text)):
            inputs["input_ids"][start + place] = int(text.ids[place])
            inputs["segment_ids"][start + place] = int(text.segment_ids[place])
            inputs["position_ids"][start + place] = place
            inputs["text_ids"][start + place] = number
        inputs["positions"] += [start + place for place in head]
    if all(len(head) == 1 for head in heads):
        inputs |= slow_heads_by_row(inputs["positions"], packing)
    return inputs


def slow_heads_by_row(positions: Sequence[int], packing: Packing) -> dict[str, list[int]]:
    rows: list[list[int]] = [[] for _ in range(packing.rows)]
    for position in positions:
        rows[position // packing.width].append(position)
    most = max(2, max(map(len, rows)))
    filled = [
        place
        for number, row in enumerate(rows)
        for place in row + [number * packing.width] * (most - len(row))
    ]
    taken = [0] * packing.rows
    order = []
    for position in positions:
        row = position // packing.width
        order.append(row * most + taken[row])
        taken[row] += 1
    return {"row_heads": filled, "head_order": order}


COSTS = st.builds(CostModel, st.floats(50, 5000), st.floats(0, 100))
RULES = st.builds(PackingRules, st.sampled_from([1, 4]), st.sampled_from([0, 32]))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), COSTS, RULES)
def test_the_packer_places_texts_as_the_slow_one(
    lengths: list[int], cost: CostModel, rules: PackingRules
) -> None:
    assert packing_time(pack(lengths, cost, rules), cost) == packing_time(
        slow_pack(lengths, cost, rules), cost
    )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), COSTS, RULES)
def test_runs_take_no_longer_than_one_and_hold_each_text_once(
    lengths: list[int], cost: CostModel, rules: PackingRules
) -> None:
    runs = plan_runs(lengths, cost, rules)
    assert sorted(n for run in runs for n in run.texts) == list(range(len(lengths)))
    assert all(len(run.packing.starts) == len(run.texts) for run in runs)
    one = [RowRun(range(len(lengths)), slow_pack(lengths, cost, rules))]
    assert plan_time(runs, cost) <= plan_time(one, cost)
    order = sorted(lengths, reverse=True)
    bounds = dict((count, bound) for bound, count in _splits(order, cost, rules))
    for count, bound in bounds.items():
        parts = [RowRun(part, slow_pack(list(part), cost, rules)) for part in (order[:count], order[count:])]
        assert bound <= plan_time(parts, cost) * (1 + 1e-9)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30), RULES, st.booleans())
def test_each_run_is_written_token_by_token(lengths: list[int], rules: PackingRules, one_head: bool) -> None:
    encodings = [encoding(length, seed) for seed, length in enumerate(lengths)]
    heads = [np.arange(0, length, 3)[: 1 if one_head else None] + length % 2 * one_head for length in lengths]
    heads = [head % length for head, length in zip(heads, lengths, strict=True)]
    cost = CostModel(300.0, 5.0)
    runs = iter(plan_runs(lengths, cost, rules))

    def compute(inputs: dict[str, Ints]) -> Floats:
        run = next(runs)
        chosen = [encodings[n] for n in run.texts]
        if MASKS_TAILS:
            expected = slow_inputs(chosen, run.packing, [list(heads[n]) for n in run.texts])
            assert {name: array.ravel().tolist() for name, array in inputs.items()} == expected
        ids = inputs["input_ids"].ravel()[inputs["positions"]]
        return ids[:, None].astype(np.float32)

    outputs, computed = Packer("rows", rules, cost).run(encodings, heads, compute)
    assert computed >= sum(lengths)
    for output, text, head in zip(outputs, encodings, heads, strict=True):
        assert output[:, 0].tolist() == text.ids[head].tolist()


def test_one_long_text_among_short_ones_gets_a_run_of_its_own() -> None:
    lengths = [12, 201, 20, 9, 15, 22, 30, 14]
    runs = plan_runs(lengths, CostModel(550.0, 14.0))
    assert [list(run.texts) for run in runs] == [[1], [6, 5, 2, 4, 7, 0, 3]]
    assert len(plan_runs(lengths, CostModel(550.0, 1000.0))) == 1


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


@given(LENGTHS.filter(lambda lengths: sum(lengths) < 3000))
def test_row_inputs_hold_each_text_where_the_packing_says(lengths: list[int]) -> None:
    encodings = [encoding(length, seed) for seed, length in enumerate(lengths)]
    packing = pack(lengths)
    heads = [np.arange(0, length, 3) for length in lengths]
    inputs = row_inputs(encodings, packing, heads)
    at = 0
    for number, (text, where) in enumerate(zip(encodings, places(packing, lengths), strict=True)):
        assert inputs["input_ids"].ravel()[where].tolist() == text.ids.tolist()
        assert inputs["segment_ids"].ravel()[where].tolist() == text.segment_ids.tolist()
        assert inputs["position_ids"].ravel()[where].tolist() == list(range(len(text)))
        assert inputs["text_ids"].ravel()[where].tolist() == [number] * len(text)
        count = len(heads[number])
        assert inputs["positions"][at : at + count].tolist() == [where[head] for head in heads[number]]
        at += count
    assert (inputs["text_ids"] == -1).sum() == packing.places - sum(lengths)
    assert all(array.dtype == np.int32 for array in inputs.values())


@pytest.mark.parametrize("one_head", [False, True])
@pytest.mark.parametrize("length", [1, 13, 512, 513, 2000])
def test_a_lone_texts_inputs_are_those_of_a_row_of_its_own(length: int, one_head: bool) -> None:
    text, head = encoding(length), np.array([length // 2]) if one_head else np.arange(0, length, 3)
    usual = row_inputs([text], pack([length]), [head])
    lone = lone_inputs(text, head)
    assert lone.keys() == usual.keys()
    for name, array in lone.items():
        assert array.dtype == np.int32 and array.flags.c_contiguous
        assert array.tolist() == usual[name].tolist()


def test_where_a_rows_tail_is_computed_otherwise_rows_end_where_texts_may_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In 8 bits, on processors whose softmax adds up the last of a row one by one."""
    monkeypatch.setattr("bert.packing.MASKS_TAILS", False)
    rules = PackingRules(align_tokens=4)
    assert pack([13, 9], rules=rules).width % 4 == 0
    text, head = encoding(13), np.zeros(1, np.intp)
    padded = lone_inputs(text, head, rules)
    assert padded["text_ids"].tolist() == [[0] * 13 + [-1] * 3]
    assert lone_inputs(text, head)["text_ids"].tolist() == [[0] * 13]
    assert row_width(13, rules) == 16


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_outputs_are_scattered_back_in_order(counts: list[int]) -> None:
    output = np.arange(2 * sum(counts), dtype=np.float32).reshape(-1, 2)
    parts = split(output, counts)
    assert [len(part) for part in parts] == counts
    assert np.array_equal(np.concatenate(parts), output)


def test_flat_inputs_are_what_packed_attention_reads() -> None:
    inputs = flat_inputs([encoding(2), encoding(3)], [np.array([0]), np.array([0, 2])])
    assert inputs["cumulative_lengths"].tolist() == [0, 2, 5]
    # Of the padded batch (2, 3) the real places first, then the padding: com.microsoft.RemovePadding's own
    # order.
    assert inputs["token_offset"].ravel().tolist() == [0, 1, 3, 4, 5, 2]
    assert inputs["position_ids"].tolist() == [0, 1, 0, 1, 2]
    assert inputs["text_ids"].tolist() == [0, 0, 1, 1, 1]
    assert inputs["positions"].tolist() == [0, 2, 4]


@given(st.lists(st.integers(1, 512), min_size=1, max_size=3000))
def test_no_run_on_a_gpu_has_much_more_scratch_than_texts(lengths: list[int]) -> None:
    groups = flat_groups(lengths)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        inside = [lengths[place] for place in group]
        assert len(inside) * max(inside) <= PADDED_SHARE * sum(inside) + PADDED_TOKENS


def test_usual_batches_on_a_gpu_are_one_run_in_their_order() -> None:
    lengths = np.random.default_rng(0).lognormal(3.4, 0.9, 1000).astype(int).clip(4, 256).tolist()
    assert flat_groups(lengths[:100]) == [list(range(100))]
    assert len(flat_groups(lengths)) <= 3
    assert len(flat_groups([512] + [8] * 8000)) == 2
