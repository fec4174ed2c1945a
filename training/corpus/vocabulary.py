"""A WordPiece vocabulary from raw text, the same one for the same text every time.

The trainer of `tokenizers` counts in hash tables whose order changes from run to run, and gives ids, and so breaks
ties, in that order. Here the characters, and the pieces "##x" of one character, have their ids before it begins.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bert.errors import ConfigError
from bert.text.wordpiece import SPECIAL_PIECES, from_vocabulary
from bert.tokenizer import Tokenizer

FIRST_PIECES = ("[PAD]", *(f"[unused{number}]" for number in range(99)), *SPECIAL_PIECES[1:])
"""Ids 0 … 103 as in bert-base-uncased: [PAD] 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103."""
MAX_ALPHABET_SHARE = 0.7
"""Largest share of characters in a Chinese vocabulary; BERT's own has 7,322 in 21,128 pieces."""
MAX_ALPHABET = 1000
"""Most characters for a language with an alphabet, as in the trainer's examples."""

_LONG_WORD = re.compile(r"[^\W\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{101,}")
"""Words of over 100 letters; Chinese characters are words of their own."""

Texts = Callable[[], Iterable[str]]


def train_vocabulary(texts: Texts, size: int, *, uncased: bool, chinese: bool) -> Tokenizer:
    """Train a tokenizer with `size` pieces, fewer where the texts have no more.

    `texts` is called twice, and gives the texts one by one; only counts of characters and words are kept. Raises
    ConfigError where there is no text.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=uncased)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    room = size - len(FIRST_PIECES)
    limit = int(room * MAX_ALPHABET_SHARE) if chinese else min(MAX_ALPHABET, room // 2)
    alphabet = _alphabet(backend, texts(), limit)
    if not alphabet:
        raise ConfigError("a vocabulary cannot be trained: the texts are empty")
    inner = [f"##{character}" for character in alphabet if _goes_on(backend, character)]
    if len(inner) + len(alphabet) > room:
        raise ConfigError(f"vocab_size ({size}) has no room for {len(inner) + len(alphabet)} characters")
    # Called special, they have the first ids; the pieces are taken from the trainer and nothing else.
    trainer = trainers.WordPieceTrainer(
        vocab_size=room,
        special_tokens=inner,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    # Longer words become [UNK] in any case, and the trainer's time grows with the square of a word's length.
    backend.train_from_iterator((_LONG_WORD.sub(" ", text) for text in texts()), trainer)
    vocabulary: dict[str, int] = backend.get_vocab()
    return _tokenizer([*FIRST_PIECES, *sorted(vocabulary, key=vocabulary.__getitem__)], uncased)


def _alphabet(backend: Any, texts: Iterable[str], limit: int) -> list[str]:
    """Return the characters of the normalised texts, sorted; over `limit` those that occur most."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in backend.normalizer.normalize_str(character):
            if not normal.isspace():
                counts[normal] += count
    return sorted(sorted(counts, key=lambda character: (-counts[character], character))[:limit])


def _goes_on(backend: Any, character: str) -> bool:
    """Return True for a character that can stand inside a word, unlike punctuation and Chinese characters."""
    normal = backend.normalizer.normalize_str(f"a{character}")
    return len(backend.pre_tokenizer.pre_tokenize_str(normal)) == 1


def _tokenizer(pieces: list[str], uncased: bool) -> Tokenizer:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(pieces), encoding="utf-8")
        return Tokenizer(from_vocabulary(file, uncased))
