"""A tokenizer for the tests, whose vocabulary is each character of their texts, and a few words."""

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert.encoding import Pieces
from bert.tokenizer import Tokenizer

# Each is awkward in its own way; code points, not bytes or UTF-16 units, must count in all of them.
AWKWARD_TEXTS = (
    "Ada Lovelace met Charles Babbage in London.",
    "two  spaces\tand a tab\u00a0and\u3000more   ",
    "🙂 Zoë 👩‍👩‍👧 went to 🇫🇷 Paris",
    "cafe\u0301 Ame\u0301lie Dvor\u030ca\u0301k",  # letters with combining marks
    "北京大学的李明去了上海。",
    "ذهب أحمد إلى القاهرة",
    "משה גר בירושלים, ישראל",
    "U.S. vs. O'Neill-Smith (№ 5), ½ ﬁn",
    "a\u200bb zero\u0000width",
)

MARKED_TEXTS = (
    "Ünïcödé and u\u0308ni\u0308co\u0308de\u0301",
    "cafe\u0301 Ame\u0301lie Dvor\u030ca\u0301k",
    "שָׁלוֹם עֲלֵיכֶם",
    "हिन्दी में",
    "☀\ufe0f 1\ufe0f\u20e3 a",
)
"""Texts with combining marks and variation selectors, for which some tokenizers have pieces of their own."""


def character_tokenizer() -> Tokenizer:
    """Return an uncased tokenizer whose words fall into single characters."""
    characters = {c for text in AWKWARD_TEXTS for c in text} | {chr(c) for c in range(33, 127)}
    characters |= {c.lower() for c in characters}
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "london", "##lace", "went"]
    pieces += [p for c in sorted(characters) if len(c) == 1 for p in (c, f"##{c}")]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend)


def read(tokenizer: Tokenizer, text: str) -> Pieces:
    """Return the pieces of one text."""
    return tokenizer.pieces([text])[0]
