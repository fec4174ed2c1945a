"""Decide in which run of the engine each text of a batch lies, and where in the run's rows. Pure functions.

A run on a CPU computes R rows of S tokens, with several texts in each row. N is the number of texts.
"""

import heapq
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class CostModel:
    """Expected time of a run, in units of one token outside attention.

    The service fits both numbers to each model and machine (`service.engine.measure`).
    """

    attention_width: float = 1000.0
    """Row width S at which attention costs as much as all other operations.

    Counted in operations alone it is 6 H: a token costs 24 H^2 outside attention and 4 S H inside (H: hidden size). In
    practice it is less: softmax and the bias are bound by memory. 8 bits make products cheaper, but not attention.
    """
    run_tokens: float = 10.0
    """Fixed time of a run, whatever its tokens: calling the graph's operators and reading the weights."""
    windowed: float = 0.0
    """Share of the layers whose attention sees a window only."""
    window_tokens: float = 0.0
    """Row width above which attention costs those layers no more a token."""

    @classmethod
    def for_model(
        cls, hidden_size: int, layers: int = 1, attention: Mapping[str, int] | None = None
    ) -> "CostModel":
        """Return a guess for a model that was not measured; `attention` is that of its manifest.

        The guess is that of MiniLM L6 x 384 in fp32 on a Zen 3, its width scaled by hidden size. On a Zen 4 the fit gave a
        width of 1,500 and 8 tokens a run; in 8 bits 550 and 14.
        """
        known = attention or {}
        return cls(
            1000.0 / 384 * hidden_size / known.get("scores", 1),
            windowed=known.get("window_layers", 0) / layers,
            window_tokens=float(known.get("window_tokens", 0)),
        )

    def attended(self, width: float) -> float:
        """Return the row width that would cost as much if all layers saw the whole row."""
        return width - self.windowed * max(0.0, width - self.window_tokens)

    def token(self, width: float) -> float:
        """Return the expected time of a token in a row of S tokens."""
        return 1.0 + self.attended(width) / self.attention_width

    def places(self, rows: int, width: float) -> float:
        """Return the expected time of R rows of S tokens, without the fixed time of the run."""
        return rows * width * self.token(width)


DEFAULT_COST = CostModel()
TEXT_TOKENS = 32
"""Length in tokens of the texts that speeds are measured with; real sentences have about 35."""


@dataclass(frozen=True, slots=True)
class PackingRules:
    """Token positions at which a text may start in a row: a bundle's `packing`.

    A text that starts at one of them gets, bit for bit, the answer that it gets alone. 8-bit graphs need this:
    docs/decisions/0007-eight-bits.md.
    """

    align_tokens: int = 1
    """Step between starts, in tokens: each start is a multiple of it."""
    block_tokens: int = 0
    """Block size in tokens. A text crosses a block's edge only if it starts at one; 0: no blocks."""
    max_pairs: int = 0
    """Layout "flat": largest N * longest^2 of a run of several texts, whose scores are all in memory; 0: no limit."""

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
"""True where ONNX Runtime's softmax treats the last tokens of a row like the others.

On x86 it masks what exceeds the row in its last vector. Elsewhere it sums the last tokens one by one, so a text's last
bits would depend on its row's width. There, row widths are rounded up to a multiple of `align_tokens`.
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


def pack(lengths: Sequence[int], cost: CostModel = DEFAULT_COST, rules: PackingRules = ANYWHERE) -> Packing:
    """Place texts of these lengths (at least 1 each) in rows so that one run takes the least expected time.

    For each number of rows worth trying, each text, longest first, goes to the row that is least full. None is split.
    Rows are as wide as the fullest, because the engine's time grows with each place, not in steps. Raises ValueError
    without a text.
    """
    if not lengths:
        raise ValueError("there is no text to pack")
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    longest, slack = lengths[order[0]], rules.align_tokens - 1
    taken = sum(round_up(length, rules.align_tokens) for length in lengths)
    narrow = min(len(lengths), -(-taken // longest))
    best, least = None, math.inf
    # Start with rows as wide as the longest text. From there the bound grows with more rows, and with fewer, wider ones.
    for counts in (_more_rows(narrow, len(lengths)), _fewer_rows(narrow)):
        for rows in counts:
            if cost.places(rows, max(longest, taken / rows - slack)) >= least:
                break
            packing = _fill_evenly(lengths, order, rows, rules)
            time = cost.places(rows, packing.width)
            if time < least:
                best, least = packing, time
    assert best is not None
    return best


ROW_STEPS = 16
"""Divisor of the number of rows that gives the step to the next number tried, which is at least 1.

With 1,000 texts, trying every number would take longer than the run itself.
"""


def _more_rows(rows: int, most: int) -> Iterator[int]:
    """Yield from `rows` up to `most` the numbers of rows to try."""
    while rows <= most:
        yield rows
        rows += max(1, rows // ROW_STEPS)


def _fewer_rows(rows: int) -> Iterator[int]:
    """Yield the numbers of rows to try below `rows`."""
    while (rows := rows - max(1, rows // ROW_STEPS)) >= 1:
        yield rows


def _fill_evenly(lengths: Sequence[int], order: Sequence[int], rows: int, rules: PackingRules) -> Packing:
    """Place the texts, longest first as `order` gives them, each in the row that is least full."""
    ends = [(0, row) for row in range(rows)]
    placed = [(0, 0)] * len(lengths)
    for text in order:
        end, row = ends[0]
        start = rules.start(end, lengths[text])
        placed[text] = row, start
        heapq.heapreplace(ends, (start + lengths[text], row))
    width = row_width(max(ends)[0], rules)
    return Packing(rows, width, tuple(row * width + start for row, start in placed))


def row_width(tokens: int, rules: PackingRules) -> int:
    """Return the width of all rows, given that the fullest has `tokens` tokens."""
    return tokens if MASKS_TAILS else round_up(tokens, rules.align_tokens)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Texts of a batch that the engine computes in one run."""

    texts: Sequence[int]
    """Indices of the texts in the batch."""
    packing: Packing
    """Places of the texts, in the order of `texts`."""


MAX_TRIED_SPLITS = 3
"""Maximum number of divisions into two runs that are tried, the most promising first."""


def plan_runs(
    lengths: Sequence[int], cost: CostModel = DEFAULT_COST, rules: PackingRules = ANYWHERE
) -> list[RowRun]:
    """Divide a batch into one run or two, whichever is expected to take less time.

    A long text widens the rows of the short ones beside it, and their attention can then cost more than a run of their own.
    Raises ValueError without a text.
    """
    runs = [RowRun(range(len(lengths)), pack(lengths, cost, rules))]
    least = _time(runs, cost)
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    splits = [split for split in _splits([lengths[n] for n in order], cost, rules) if split[0] < least]
    for bound, count in sorted(splits)[:MAX_TRIED_SPLITS]:
        if bound >= least:
            break
        parts = order[:count], order[count:]
        tried = [RowRun(part, pack([lengths[n] for n in part], cost, rules)) for part in parts]
        time = _time(tried, cost)
        if time < least:
            runs, least = tried, time
    return runs


def _time(runs: Sequence[RowRun], cost: CostModel) -> float:
    return sum(cost.run_tokens + cost.places(run.packing.rows, run.packing.width) for run in runs)


def _splits(lengths: Sequence[int], cost: CostModel, rules: PackingRules) -> Iterator[tuple[float, int]]:
    """Yield each division of the texts into two runs: a lower bound of its time, and the number of texts in the first run.

    `lengths` are sorted, longest first, and the first run takes the longest texts.
    """
    taken = list(accumulate(round_up(length, rules.align_tokens) for length in lengths))
    slack = rules.align_tokens - 1
    for count in range(1, len(lengths)):
        if lengths[count] < lengths[count - 1]:
            long = _least_time(taken[count - 1], lengths[0], cost, slack)
            short = _least_time(taken[-1] - taken[count - 1], lengths[count], cost, slack)
            yield 2 * cost.run_tokens + long + short, count


def _least_time(taken: int, longest: int, cost: CostModel, slack: int) -> float:
    """Return a lower bound of the time of texts that take `taken` tokens when aligned.

    The last text of a row needs no alignment after it, which saves up to `slack` tokens.
    """
    rows = -(-taken // (longest + slack))
    narrow = cost.places(rows, longest)
    return min(narrow, cost.places(rows - 1, taken / (rows - 1) - slack)) if rows > 1 else narrow


PADDED_SHARE, PADDED_TOKENS = 4, 16_384
"""Limit of packed attention's scratch memory, in tokens: PADDED_SHARE times the texts' tokens, plus PADDED_TOKENS.

The scratch is as large as the batch would be if padded to its longest text.
"""


def flat_groups(lengths: Sequence[int], max_pairs: int = 0) -> list[list[int]]:
    """Divide a "flat" batch into runs, each a list of indices; most batches are one run.

    One paragraph beside 500 words would need gigabytes of attention scratch, which the GPU's arena keeps. `max_pairs` is
    that of PackingRules.
    """

    def fits(count: int, longest: int, tokens: int) -> bool:
        within_padding = count * longest <= PADDED_SHARE * tokens + PADDED_TOKENS
        return within_padding and (count == 1 or not max_pairs or count * longest**2 <= max_pairs)

    if fits(len(lengths), max(lengths), sum(lengths)):
        return [list(range(len(lengths)))]
    groups: list[list[int]] = [[]]
    longest = tokens = 0
    for place in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[place]
        if groups[-1] and not fits(len(groups[-1]) + 1, longest, tokens + length):
            groups.append([])
        if not groups[-1]:
            longest = tokens = 0
        groups[-1].append(place)
        longest, tokens = max(longest, length), tokens + length
    return groups
