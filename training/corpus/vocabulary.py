"""Vocabularies from raw text, the same one for the same text every time: WordPiece, byte-level BPE and Unigram.

The trainers of `tokenizers` count in hash tables, whose order changes from run to run.

- WordPiece gives ids, and so breaks ties, in that order. Here the characters, and the pieces "##x" of one character, have
  their ids before it begins.
- BPE breaks ties by ids. Those of the 256 bytes follow their code points, and each merge gets the next one, so the order
  decides nothing.
- Unigram sums in that order; `unigram.py` has a trainer that does not.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert.errors import ConfigError
from bert.text.byte_level_bpe import ROBERTA_PIECES, from_model
from bert.text.stated import StatedTokens, special_pieces
from bert.text.wordpiece import SPECIAL_PIECES, from_vocabulary
from bert.tokenizer import Tokenizer
from training.corpus.documents import is_chosen
from training.corpus.settings import PrepareSettings, VocabularyFamily
from training.corpus.unigram import SPACE, unigram_pieces

Texts = Callable[[], Iterable[str]]
"""Texts to train on, one by one, each time that it is called."""

FIRST_PIECES = ("[PAD]", *(f"[unused{number}]" for number in range(99)), *SPECIAL_PIECES[1:])
"""Ids 0 … 103 as in bert-base-uncased: [PAD] 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103."""
MAX_ALPHABET_SHARE = 0.7
"""Largest share of characters in a Chinese vocabulary; BERT's own has 7,322 in 21,128 pieces."""
MAX_ALPHABET = 1000
"""Most characters for a language with an alphabet, as in the trainer's examples."""

_LONG_WORD = re.compile(r"[^\W\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{101,}")
"""Words of over 100 letters; Chinese characters are words of their own."""

_BPE_CLASSES: dict[VocabularyFamily, str] = {"roberta": "Roberta", "modernbert": "ModernBert"}
_BPE_ENDS: dict[VocabularyFamily, tuple[tuple[str, ...], tuple[str, ...]]] = {
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
_LONG_RUN = re.compile(r"\S{100}(?=\S)")

_UNIGRAM_FIRST: dict[VocabularyFamily, tuple[str, ...]] = {
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "deberta-v2": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
}
"""Special pieces before all others, as in the published files; DeBERTa's [MASK] is the last."""
_UNIGRAM_SPECIAL = {
    "albert": special_pieces("[CLS]", "[SEP]", "<pad>", "<unk>", "[MASK]"),
    "deberta-v2": special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", mask_takes_blanks=False),
}
MAX_WORDS = 2_000_000
"""Largest number of different words to count, 400 MB. Once it is reached, later texts count for known words only."""
COVERAGE = 0.9995
"""Share of the text whose characters become pieces, as in SentencePiece: the rarest ones are unknown."""


def trained_tokenizer(settings: PrepareSettings, texts: Texts) -> Tokenizer:
    """Train the vocabulary of the settings' family."""
    match settings.model_type:
        case "roberta" | "modernbert" as family:
            return train_bpe_vocabulary(texts, settings.pieces, family)
        case "albert" | "deberta-v2" as family:
            return train_unigram_vocabulary(texts, settings.pieces, family, uncased=settings.lowercases)
    return train_vocabulary(texts, settings.pieces, uncased=settings.lowercases, chinese=settings.is_chinese)


def train_vocabulary(texts: Texts, size: int, *, uncased: bool, chinese: bool) -> Tokenizer:
    """Train a WordPiece tokenizer with `size` pieces, fewer where the texts have no more.

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
    return _wordpiece([*FIRST_PIECES, *sorted(vocabulary, key=vocabulary.__getitem__)], uncased)


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


def _wordpiece(pieces: list[str], uncased: bool) -> Tokenizer:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(pieces), encoding="utf-8")
        return Tokenizer(from_vocabulary(file, uncased))


def train_bpe_vocabulary(texts: Texts, size: int, family: VocabularyFamily) -> Tokenizer:
    """Train a byte-level BPE tokenizer with `size` pieces, fewer where the texts have no more.

    `texts` is called twice. Memory holds the different words and how often each occurs. Raises ConfigError where there
    is no text, or no room for the bytes.
    """
    first, last = _BPE_ENDS[family]
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
    backend.train_from_iterator(_spaced_texts(texts), trainer)
    model = json.loads(backend.to_str())["model"]
    if not model["merges"]:
        raise ConfigError("a vocabulary cannot be trained: the texts are empty")
    vocabulary = {**model["vocab"], **{piece: len(model["vocab"]) + i for i, piece in enumerate(last)}}
    trained = models.BPE(vocabulary, [(left, right) for left, right in model["merges"]])
    with TemporaryDirectory() as empty:  # no file states anything else than the family's own
        return Tokenizer(from_model(trained, _BPE_CLASSES[family], StatedTokens.read(Path(empty))))


def _spaced_texts(texts: Texts) -> Iterator[str]:
    """Yield the texts to count, their words apart by single spaces; of scripts without spaces a sample.

    Words of over 100 characters are cut: the trainer's time grows with the square of a word's length.
    """
    unspaced = sum(len(run) for text in texts() for run in _UNSPACED.findall(text))
    share = min(1.0, MAX_UNSPACED / max(1, unspaced))
    for number, text in enumerate(texts()):
        if is_chosen(0, number, share):
            yield _LONG_RUN.sub("\\g<0>\n", " ".join(text.split()))


def train_unigram_vocabulary(
    texts: Texts, size: int, family: VocabularyFamily, *, uncased: bool
) -> Tokenizer:
    """Train a Unigram tokenizer with `size` pieces, fewer where the texts have no more. Raises ConfigError for no text."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(_normalizers(family, uncased))
    special, first = _UNIGRAM_SPECIAL[family], _UNIGRAM_FIRST[family]
    room = size - len({*first, special["mask"].content})
    words = _without_rare(_counted(texts(), backend.normalizer), room // 2)
    if not words:
        raise ConfigError("a vocabulary cannot be trained: the texts are empty")
    pieces = [(piece, log) for piece, log in unigram_pieces(words, room) if piece not in first]
    backend.model = models.Unigram(
        [*((piece, 0.0) for piece in first), *pieces], first.index(special["unk"].content)
    )
    space = pre_tokenizers.Metaspace(prepend_scheme="always")
    splits = [pre_tokenizers.WhitespaceSplit(), space] if family == "albert" else [space]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.add_special_tokens([special[name] for name in ("pad", "unk", "cls", "sep", "mask")])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(piece, backend.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    return Tokenizer(backend)


def _normalizers(family: VocabularyFamily, uncased: bool) -> list[normalizers.Normalizer]:
    """Return what the family's class in `transformers` does to a text."""
    if family == "albert":
        quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        folded = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        return [*quotes, *(folded if uncased else [])]
    lower = [normalizers.Lowercase()] if uncased else []
    blanks = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    return [*lower, blanks, normalizers.NFC(), normalizers.Strip(left=False, right=True)]


def _counted(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Counter[str]:
    counts = Counter[str]()
    for text in texts:
        words = normalizer.normalize_str(text).split()
        counts.update(words if len(counts) < MAX_WORDS else filter(counts.__contains__, words))
    return Counter({SPACE + word: count for word, count in counts.items()})


def _without_rare(words: Mapping[str, int], most: int) -> Mapping[str, int]:
    """Cut words at the characters past COVERAGE, and past the `most` frequent ones."""
    characters = Counter[str]()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    left, total = most, sum(characters.values()) * COVERAGE
    rare = dict[str, str]()
    for character in sorted(characters, key=lambda each: (-characters[each], each)):
        if left <= 0 or total <= 0:
            rare[character] = "\0"
        left, total = left - 1, total - characters[character]
    rare["\0"] = "\0"
    table, cut = str.maketrans(rare), Counter[str]()
    for word, count in words.items():
        for part in filter(None, word.translate(table).split("\0")):
            cut[part] += count
    return cut
