"""Where a text may start in a row, against the slow obvious way."""

from hypothesis import given
from hypothesis import strategies as st

from bert.packing_rules import PackingRules


@given(st.integers(0, 500), st.integers(1, 200), st.sampled_from([1, 4, 8]), st.sampled_from([0, 32, 128]))
def test_a_text_starts_at_the_first_place_that_the_rules_allow(
    used: int, tokens: int, align: int, block: int
) -> None:
    def allowed(start: int) -> bool:
        crosses = block and start // block != (start + tokens - 1) // block
        return start % align == 0 and (not crosses or start % block == 0)

    slow = next(start for start in range(used, used + 1000) if allowed(start))
    assert PackingRules(align, block).start(used, tokens) == slow
