"""The graph's inputs against a slow, obvious writer, and what each layout's must hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.encoding import Encoding
from bert.graph_inputs import Floats, Ints, Packer, flat_inputs, lone_inputs, row_inputs, split
from bert.packing import MASKS_TAILS, CostModel, Packing, PackingRules, pack, plan_runs, row_width

RULES = st.builds(PackingRules, st.sampled_from([1, 4]), st.sampled_from([0, 32]))


def encoding(length: int, seed: int = 0) -> Encoding:
    ids = np.random.default_rng(seed).integers(1, 1000, length).astype(np.int32)
    segments = (np.arange(length) > length // 2).astype(np.int32)
    return Encoding(
        ids, segments, np.zeros((length, 2), np.int32), np.arange(length, dtype=np.int32), segments
    )


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
    """Pad the rows of 8-bit graphs on processors whose softmax sums a row's last tokens one by one."""
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
