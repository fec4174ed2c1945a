"""Lay a batch's texts side by side as the graph's inputs, with little or no padding.

Layout "rows" (CPU) has R rows of S tokens, several texts in each; "flat" (CUDA) has one row without padding.
Shapes: N texts, T tokens of all of them together, P head positions.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding

Ints = NDArray[np.int32]
Positions = NDArray[np.integer]

ATTENTION_WIDTH = 1000.0
"""Row width S at which attention costs as much as all other operations, for a model of ATTENTION_HIDDEN_SIZE.

By operations alone it is 6 H (24 H^2 a token outside attention, 4 S H inside); softmax and the bias are bound by
memory and cost more. Fitted on MiniLM L6 x 384, fp32, 512 tokens, CPU ms on one core of a Zen 4: rows of 32 tokens
110, 64 114, 128 121, 256 134, 512 164.
"""
ATTENTION_HIDDEN_SIZE = 384

MAX_SPLITS = 6
"""Largest number of even rows whose width is tried."""


@dataclass(frozen=True, slots=True)
class PackingRules:
    """Token positions at which a text may start in a row: a bundle's `packing`.

    Texts that keep to them get bit for bit the answer that they get alone, which 8-bit graphs need:
    docs/decisions/0007-eight-bits.md.
    """

    align_tokens: int = 1
    """Step between starts, in tokens: each start is a multiple of it."""
    block_tokens: int = 0
    """Block size in tokens. A text crosses a block's edge only if it starts at one; 0: no blocks."""

    def start(self, used: int, tokens: int) -> int:
        """Return the first allowed start at or after `used` for a text of `tokens` tokens."""
        start = round_up(used, self.align_tokens)
        if not self.block_tokens or start % self.block_tokens + tokens <= self.block_tokens:
            return start
        return round_up(start, self.block_tokens)


def round_up(tokens: int, step: int) -> int:
    """Return the first multiple of `step` at or after `tokens`."""
    return -(-tokens // step) * step


ANYWHERE = PackingRules()

MASKS_TAILS = platform.machine().lower() in ("x86_64", "amd64")
"""True where a row's last tokens go through the same operations as the others.

ONNX Runtime's softmax masks them in vectors of x86. Elsewhere it sums a row's remainder one by one, so that a text's last
bits depend on its row's width. There a row's width is a multiple of `align_tokens`.
"""


@dataclass(frozen=True, slots=True)
class Packing:
    """Places of N texts in R rows of S tokens."""

    rows: int
    width: int
    starts: tuple[int, ...]
    """Index of each text's first token in the R * S places, row after row."""

    @property
    def places(self) -> int:
        """Number of tokens that the engine computes, R * S."""
        return self.rows * self.width

    def cost(self, attention_width: float = ATTENTION_WIDTH) -> float:
        """Return the expected time in units of one token outside attention."""
        return self.places * (1.0 + self.width / attention_width)


def pack(
    lengths: Sequence[int], attention_width: float = ATTENTION_WIDTH, rules: PackingRules = ANYWHERE
) -> Packing:
    """Place texts of these lengths (at least 1 each) in rows so that the expected time is least.

    Texts are placed first-fit-decreasing at each candidate width, none split over rows. Rows are as wide as the fullest:
    the engine's time grows with each place, not in steps. Raises ValueError without a text.
    """
    if not lengths:
        raise ValueError("there is no text to pack")
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    packings = (_first_fit(lengths, order, width, rules) for width in candidate_widths(lengths, rules))
    return min(packings, key=lambda packing: packing.cost(attention_width))


def candidate_widths(lengths: Sequence[int], rules: PackingRules = ANYWHERE) -> list[int]:
    """Return the widths worth trying: the longest text's, and those that make 1 to MAX_SPLITS even rows."""
    longest = max(lengths)
    taken = sum(round_up(length, rules.align_tokens) for length in lengths)
    even = {-(-taken // rows) for rows in range(1, MAX_SPLITS + 1)}
    return sorted({longest, *(width for width in even if width > longest)})


def _first_fit(lengths: Sequence[int], order: Sequence[int], width: int, rules: PackingRules) -> Packing:
    """Place the texts, longest first as `order` gives them, each in the first row with room."""
    used: list[int] = []
    placed = [(0, 0)] * len(lengths)
    for text in order:
        length = lengths[text]
        free = ((row, rules.start(taken, length)) for row, taken in enumerate(used))
        row, start = next(((r, at) for r, at in free if at + length <= width), (len(used), 0))
        placed[text] = row, start
        used[row : row + 1] = [start + length]
    fullest = row_width(max(used), rules)
    return Packing(len(used), fullest, tuple(row * fullest + start for row, start in placed))


def row_width(tokens: int, rules: PackingRules) -> int:
    """Return the rows' width where the fullest has `tokens` tokens."""
    return tokens if MASKS_TAILS else round_up(tokens, rules.align_tokens)


_COUNTED = np.arange(512, dtype=np.int32)[None]
_ZEROS = np.zeros_like(_COUNTED)


def lone_inputs(encoding: Encoding, head: Positions, rules: PackingRules = ANYWHERE) -> dict[str, Ints]:
    """Return `row_inputs` of one text in a row of its own length, in a fifth of the time.

    Most batches of an idle service are one text, and the batch before has evicted this code from the core's caches.
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
    }


def row_inputs(
    encodings: Sequence[Encoding], packing: Packing, heads: Sequence[Positions], pad_id: int = 0
) -> dict[str, Ints]:
    """Return the graph's inputs for layout "rows".

    `heads` holds each text's own positions where the head is evaluated. Returns input_ids, segment_ids, position_ids and
    text_ids (R, S), text_ids -1 on padding, and positions (P,) among the R * S places, in text order.
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
        "input_ids": spread(np.concatenate([e.ids for e in encodings]), pad_id),
        "segment_ids": spread(np.concatenate([e.segment_ids for e in encodings]), 0),
        "position_ids": spread(inside, 0),
        "text_ids": spread(np.repeat(np.arange(len(encodings)), lengths), -1),
        "positions": positions.astype(np.int32),
    }


PADDED_SHARE, PADDED_TOKENS = 4, 16_384
"""Limit of packed attention's scratch, which is as large as the padded batch: this multiple of the texts' tokens, plus
these tokens."""


def flat_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Divide a "flat" batch into runs, each a list of indices; most batches are one run.

    One paragraph beside 500 words would need gigabytes of attention scratch, which the GPU's arena keeps.
    """
    if len(lengths) * max(lengths) <= PADDED_SHARE * sum(lengths) + PADDED_TOKENS:
        return [list(range(len(lengths)))]
    groups: list[list[int]] = [[]]
    longest = tokens = 0
    for place in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[place]
        if (len(groups[-1]) + 1) * longest > PADDED_SHARE * (tokens + length) + PADDED_TOKENS:
            groups.append([])
        if not groups[-1]:
            longest = tokens = 0
        groups[-1].append(place)
        longest, tokens = max(longest, length), tokens + length
    return groups


def flat_inputs(
    encodings: Sequence[Encoding], heads: Sequence[Positions], longest: int | None = None
) -> dict[str, Ints]:
    """Return the graph's inputs for layout "flat" (CUDA): all T tokens in one row, no padding between texts.

    `heads` holds those of the first texts; the others have none. com.microsoft's packed attention reads token_offset
    (N, longest): first the T tokens' places in the padded batch, then the padding's. cumulative_lengths is (N + 1,).
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


@dataclass(frozen=True, slots=True)
class Packer:
    """Batches of encoded texts as the inputs of one graph."""

    layout: str
    """"rows" or "flat"."""
    rules: PackingRules = ANYWHERE
    hidden_size: int = ATTENTION_HIDDEN_SIZE

    def inputs(
        self, encodings: Sequence[Encoding], heads: Sequence[Positions]
    ) -> tuple[dict[str, Ints], int]:
        """Return the graph's inputs and the number of places computed."""
        if self.layout == "flat":
            return flat_inputs(encodings, heads), sum(map(len, encodings))
        if len(encodings) == 1:
            return lone_inputs(encodings[0], heads[0], self.rules), row_width(len(encodings[0]), self.rules)
        width = ATTENTION_WIDTH / ATTENTION_HIDDEN_SIZE * self.hidden_size
        packing = pack([len(encoding) for encoding in encodings], width, self.rules)
        return row_inputs(encodings, packing, heads), packing.places


def split(output: NDArray[np.float32], counts: Sequence[int]) -> list[NDArray[np.float32]]:
    """Split the head's output (P, K) into (P_n, K) for each text, in text order."""
    if len(counts) == 1:
        return [output]
    return [output[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def joined(outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Undo `split`."""
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)
