"""Where texts may lie in a row: what export verified and the service keeps to. A bundle's `packing`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackingRules:
    """Where a text may start in a row, in tokens.

    Then its answer is bit for bit that of the text alone, which 8-bit graphs need: docs/decisions/0007-eight-bits.md.
    """

    align_tokens: int = 1
    """Every start is a multiple of it."""
    block_tokens: int = 0
    """A text crosses no multiple of it unless it starts at one; 0: it may."""

    def start(self, used: int, tokens: int) -> int:
        """Return the first place at or after `used` where a text of so many tokens may start."""
        start = round_up(used, self.align_tokens)
        if not self.block_tokens or start % self.block_tokens + tokens <= self.block_tokens:
            return start
        return round_up(start, self.block_tokens)


def round_up(tokens: int, step: int) -> int:
    """Return the first multiple of `step` at or after `tokens`."""
    return -(-tokens // step) * step
