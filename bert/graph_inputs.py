"""Write a batch's texts as the graph's inputs.

Layout "rows" (CPU) has R rows of S tokens, with several texts in each; "flat" (CUDA) has one row without padding.
Shapes: N texts, T tokens in all texts together, P head positions, Q head positions in a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.packing import (
    ANYWHERE,
    DEFAULT_COST,
    CostModel,
    Packing,
    PackingRules,
    flat_groups,
    plan_runs,
    row_width,
)

Ints = NDArray[np.int32]
Positions = NDArray[np.integer]
Floats = NDArray[np.float32]

MIN_ROW_HEADS = 2
"""Minimum number of head positions in a row. For a single one ONNX Runtime takes another product whose bits differ."""

_COUNTED = np.arange(512, dtype=np.int32)[None]
_ZEROS = np.zeros_like(_COUNTED)


def lone_inputs(encoding: Encoding, head: Positions, rules: PackingRules = ANYWHERE) -> dict[str, Ints]:
    """Return what `row_inputs` returns for one text in a row of its own length, in a fifth of the time.

    Most batches of an idle service are one text, and the previous batch has evicted this code from the core's caches.
    """
    tokens = len(encoding)
    width = row_width(tokens, rules)
    if width > min(tokens, _COUNTED.size):
        return row_inputs([encoding], Packing(1, width, (0,)), [head])
    return {
        "input_ids": encoding.ids[None],
        "segment_ids": encoding.segment_ids[None],
        "position_ids": _COUNTED[:, :tokens],
        "text_ids": _ZEROS[:, :tokens],
        "positions": head.astype(np.int32),
        **(
            {"row_heads": np.array([[head[0], 0]], np.int32), "head_order": _ZEROS[0, :1]}
            if len(head) == 1
            else {}
        ),
    }


def row_inputs(
    encodings: Sequence[Encoding], packing: Packing, heads: Sequence[Positions]
) -> dict[str, Ints]:
    """Return the graph's inputs for layout "rows".

    `heads` holds, for each text, the positions in it where the head is evaluated. Returns:
    - input_ids, segment_ids, position_ids and text_ids (R, S); text_ids is -1 on padding;
    - positions (P,): the head positions as indices into the R * S places, in text order;
    - if each text has one head position: row_heads (R, Q), the same indices by row, each row filled up with the index of
      its first place; and head_order (P,), where each text's position is in row_heads.
    """
    lengths = np.fromiter((len(e) for e in encodings), np.int64, len(encodings))
    before = np.cumsum(lengths) - lengths
    starts = np.asarray(packing.starts, np.int64)
    inside = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
    places = inside + np.repeat(starts, lengths)

    def spread(values: NDArray[np.integer], empty: int) -> Ints:
        out = np.full(packing.places, empty, np.int32)
        out[places] = values
        return out.reshape(packing.rows, packing.width)

    counts = np.fromiter((len(head) for head in heads), np.int64, len(heads))
    positions = np.concatenate([np.asarray(head) for head in heads]) + np.repeat(starts, counts)
    return {
        "input_ids": spread(np.concatenate([e.ids for e in encodings]), 0),
        "segment_ids": spread(np.concatenate([e.segment_ids for e in encodings]), 0),
        "position_ids": spread(inside, 0),
        "text_ids": spread(np.repeat(np.arange(len(encodings)), lengths), -1),
        "positions": positions.astype(np.int32),
        **(_heads_by_row(positions, packing.rows, packing.width) if (counts == 1).all() else {}),
    }


def _heads_by_row(positions: Positions, rows: int, width: int) -> dict[str, Ints]:
    """Return row_heads (R, Q) and head_order (P,) for positions (P,), which are indices into the R * S places."""
    row_of = positions // width
    counts = np.bincount(row_of, minlength=rows)
    most = max(MIN_ROW_HEADS, int(counts.max()))
    order = np.argsort(row_of, kind="stable")
    head_order = np.empty(len(positions), np.int32)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    head_order[order] = row_of[order] * most + np.arange(len(positions)) - before
    row_heads = np.repeat(np.arange(0, rows * width, width, dtype=np.int32), most)
    row_heads[head_order] = positions
    return {"row_heads": row_heads.reshape(rows, most), "head_order": head_order}


def flat_inputs(
    encodings: Sequence[Encoding], heads: Sequence[Positions], longest: int | None = None
) -> dict[str, Ints]:
    """Return the graph's inputs for layout "flat" (CUDA): all T tokens in one row, no padding between texts.

    `heads` holds the head positions of the first len(heads) texts; the others have none. com.microsoft's packed attention
    reads token_offset (N, longest): first the places of the T tokens in the padded batch, then those of the padding.
    cumulative_lengths is (N + 1,).
    """
    lengths = np.fromiter((len(e) for e in encodings), np.int64, len(encodings))
    ends = np.cumsum(lengths)
    inside = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    longest = longest or int(lengths.max())
    real = np.arange(longest)[None, :] < lengths[:, None]
    padded = np.arange(real.size).reshape(real.shape)
    counts = np.fromiter((len(head) for head in heads), np.int64, len(heads))
    starts = (ends - lengths)[: len(heads)]
    positions = np.concatenate([np.asarray(head) for head in heads]) + np.repeat(starts, counts)
    arrays = {
        "input_ids": np.concatenate([e.ids for e in encodings]),
        "segment_ids": np.concatenate([e.segment_ids for e in encodings]),
        "position_ids": inside,
        "text_ids": np.repeat(np.arange(len(encodings)), lengths),
        "positions": positions,
        "token_offset": np.concatenate([padded[real], padded[~real]]).reshape(real.shape),
        "cumulative_lengths": np.concatenate([[0], ends]),
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def label_inputs(encodings: Sequence[Encoding], width: int) -> dict[str, NDArray[Any]]:
    """Return the vectors of the texts' labels, of those that share a set once, and whose they are. V vectors of D numbers.

    label_vectors (V, D) float32; label_sets (V,): the set of each vector; text_sets (N,): that of each text. A text without
    a set is judged for no label.
    """
    none = np.zeros((0, width), np.float32)
    vectors = [none if each.label_vectors is None else each.label_vectors for each in encodings]
    sets = {id(each): each for each in vectors}
    numbers = {key: number for number, key in enumerate(sets)}
    lengths = [len(each) for each in sets.values()]
    return {
        "label_vectors": np.concatenate(list(sets.values())),
        "label_sets": np.repeat(np.arange(len(sets), dtype=np.int32), lengths),
        "text_sets": np.array([numbers[id(each)] for each in vectors], np.int32),
    }


def chunk_ids(inputs: Mapping[str, Ints]) -> Ints:
    """Return the chunk of each place (R, S), which begins at one of `positions`; -1 on padding.

    The first token of each text is one of them.
    """
    text_ids, positions = inputs["text_ids"], inputs["positions"]
    order = np.argsort(positions)
    begun = np.searchsorted(positions[order], np.arange(text_ids.size), side="right") - 1
    found: Ints = np.where(text_ids < 0, -1, order[begun].reshape(text_ids.shape)).astype(np.int32)
    return found


@dataclass(frozen=True, slots=True)
class Packer:
    """Runs batches of encoded texts through one graph."""

    layout: str
    """"rows" or "flat"."""
    rules: PackingRules = ANYWHERE
    cost: CostModel = DEFAULT_COST
    label_width: int = 0
    """Numbers of a label's vector, where the graph is given those of labels."""
    reads_chunks: bool = False
    """The graph pools chunks of texts: it reads `chunk_ids`."""

    def run(
        self,
        encodings: Sequence[Encoding],
        heads: Sequence[Positions],
        compute: Callable[[dict[str, NDArray[Any]]], Floats],
        rows: Sequence[int] | None = None,
        shorten: Callable[[Floats], Floats] = lambda output: output,
    ) -> tuple[list[Floats], int]:
        """Run the graph on a batch, once or more; return each text's output (P_n, K) and the number of tokens computed.

        `heads` holds the positions (P_n,) in each text where the head is evaluated. `compute` is called with the inputs
        of each run and returns the graph's output (P, K); P is never 0, although every P_n may be. `rows` are the numbers
        of each text's rows in the output where they are not P_n. `shorten` reduces each text's output.
        """
        rows = list(map(len, heads)) if rows is None else rows
        if not any(map(len, heads)):  # of which ONNX Runtime's reductions make another shape
            outputs, computed = self.run(
                encodings, [np.zeros(1, np.intp)] * len(encodings), compute, rows, shorten
            )
            return [output[:0] for output in outputs], computed
        outputs = [np.empty(0, np.float32)] * len(encodings)
        computed = 0
        for texts, inputs, tokens in self._runs(encodings, heads):
            if self.label_width:
                inputs = inputs | label_inputs([encodings[n] for n in texts], self.label_width)
            if self.reads_chunks:
                is_plain = len(inputs["positions"]) == len(texts)
                inputs["chunk_ids"] = inputs["text_ids"] if is_plain else chunk_ids(inputs)
            parts = split(compute(inputs), [rows[n] for n in texts])
            for n, part in zip(texts, parts, strict=True):
                outputs[n] = shorten(part)
            computed += tokens
        return outputs, computed

    def _runs(
        self, encodings: Sequence[Encoding], heads: Sequence[Positions]
    ) -> Iterator[tuple[Sequence[int], dict[str, Ints], int]]:
        """Yield for each run the indices of its texts, its inputs and the number of tokens that it computes."""
        lengths = [len(encoding) for encoding in encodings]
        if self.layout == "flat":
            for texts in flat_groups(lengths, self.rules.max_pairs):
                inputs = flat_inputs([encodings[n] for n in texts], [heads[n] for n in texts])
                yield texts, inputs, sum(lengths[n] for n in texts)
        elif len(encodings) == 1:
            yield (0,), lone_inputs(encodings[0], heads[0], self.rules), row_width(lengths[0], self.rules)
        else:
            for run in plan_runs(lengths, self.cost, self.rules):
                chosen, places = [encodings[n] for n in run.texts], [heads[n] for n in run.texts]
                yield run.texts, row_inputs(chosen, run.packing, places), run.packing.places


def split(output: NDArray[np.float32], counts: Sequence[int]) -> list[NDArray[np.float32]]:
    """Split the head's output (P, K) into (P_n, K) for each text, in text order."""
    if len(counts) == 1:
        return [output]
    return [output[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def joined(outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Undo `split`."""
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def flat(outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the numbers of outputs of any shapes: of labels and of texts, say."""
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=None)
