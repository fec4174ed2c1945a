"""A byte-level BPE vocabulary from raw text, the same one for the same text every time.

The trainer of `tokenizers` breaks ties by ids. Those of the 256 bytes follow their code points, and each merge gets the
next one, so the order of its hash tables decides nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bert.errors import ConfigError
from bert.text.byte_level_bpe import ROBERTA_PIECES, from_model
from bert.text.stated import StatedTokens
from bert.tokenizer import Tokenizer
from training.corpus.blocks import is_chosen

Family = Literal["roberta", "modernbert"]
_NAMES: dict[Family, str] = {"roberta": "Roberta", "modernbert": "ModernBert"}
_ENDS: dict[Family, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "roberta": (ROBERTA_PIECES[:-1], ROBERTA_PIECES[-1:]),
    "modernbert": ((), ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")),
}
"""Special pieces before all others and after them, as in the published files."""
MAX_UNSPACED = 6_000_000
"""Most characters of scripts without spaces to train on; nearly each of their words is new: 250 bytes a character."""
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
_LONG_WORD = re.compile(r"\S{100}(?=\S)")

Texts = Callable[[], Iterable[str]]


def train_bpe_vocabulary(texts: Texts, size: int, family: Family) -> Tokenizer:
    """Train a tokenizer with `size` pieces, fewer where the texts have no more.

    `texts` is called twice. Memory holds the different words and how often each occurs. Raises ConfigError where there
    is no text, or no room for the bytes.
    """
    first, last = _ENDS[family]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if (least := len(alphabet) + len(first) + len(last)) > size:
        raise ConfigError(f"vocab_size ({size}) must be at least {least}, the bytes and the special pieces")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC() if family == "modernbert" else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(last),
        special_tokens=list(first),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(_counted(texts), trainer)
    model = json.loads(backend.to_str())["model"]
    if not model["merges"]:
        raise ConfigError("a vocabulary cannot be trained: the texts are empty")
    vocabulary = {**model["vocab"], **{piece: len(model["vocab"]) + i for i, piece in enumerate(last)}}
    trained = models.BPE(vocabulary, [(left, right) for left, right in model["merges"]])
    with TemporaryDirectory() as empty:  # no file states anything else than the family's own
        return Tokenizer(from_model(trained, _NAMES[family], StatedTokens.read(Path(empty))))


def _counted(texts: Texts) -> Iterator[str]:
    """Yield the texts to count, their words apart by single spaces; of scripts without spaces a sample.

    Words of over 100 characters are cut: the trainer's time grows with the square of a word's length.
    """
    unspaced = sum(len(run) for text in texts() for run in _UNSPACED.findall(text))
    share = min(1.0, MAX_UNSPACED / max(1, unspaced))
    for number, text in enumerate(texts()):
        if is_chosen(0, number, share):
            yield _LONG_WORD.sub("\\g<0>\n", " ".join(text.split()))
