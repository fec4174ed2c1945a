"""Texts that tokenizers stumble over, and hypothesis' way to more of them."""

from hypothesis import strategies as st

from tests.support.reading import AWKWARD_TEXTS

ODD_TEXTS = (
    *AWKWARD_TEXTS,
    "",
    "   ",
    "\t\n",
    "\u0301a mark at the start",
    "Ünïcödé and u\u0308ni\u0308co\u0308de\u0301",
    "☀️ 🇬🇧🏴󠁧󠁢󠁥󠁮󠁧󠁿 👍🏽 👨‍👩‍👧‍👦 1️⃣",
    "İstanbul ΣΊΣΥΦΟΣ Straße ǅ",
    "한국어 かな カタカナ 漢字 ไทย हिन्दी தமிழ்",
    "שָׁלוֹם עֲלֵיכֶם",
    "مُحَمَّد \u202eright to left\u202c",
    "bell\x07, escape\x1b, soft\u00adhyphen, \ufeffBOM, \ufffd",
    "line\u2028separator\u2029paragraph\u0085next",
    "x" * 150,
    "##ing a ## b ###",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𠀁",
    "don't — “won’t” …can´t",
)

LONG_TEXTS = (
    "The café of Zoë, 北京! " * 1000,
    "a" * 20_000,
    "a\u0301" * 10_000,
    "🙂" * 20_000,
    " " * 20_000,
)

_FRAGMENTS = [
    *"aAzZ09éß.,-'[]#@ \t\n\u00a0\u3000北京🙂ﬁİΣ한हिאاّ\u0301\u20e3\ufe0f\u200d\u200b\x00\x07\ufffd𠀀",
    *("e\u0301", "[SEP]", "[CLS]", "##a", "london", "went", "👩‍👩‍👧", "  "),
]
TEXTS = st.lists(st.sampled_from(_FRAGMENTS), max_size=30).map("".join)
"""Short texts from fragments, so that odd neighbours meet often."""
