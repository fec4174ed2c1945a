"""A Unigram vocabulary from raw text for ALBERT or DeBERTa-v3, the same one for the same text every time."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from bert.errors import ConfigError
from bert.text.stated import special_pieces
from bert.tokenizer import Tokenizer
from training.corpus.unigram import SPACE, unigram_pieces

Family = Literal["albert", "deberta-v2"]
_FIRST: dict[Family, tuple[str, ...]] = {
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "deberta-v2": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
}
"""Special pieces before all others, as in the published files; DeBERTa's [MASK] is the last."""
_SPECIAL = {
    "albert": special_pieces("[CLS]", "[SEP]", "<pad>", "<unk>", "[MASK]"),
    "deberta-v2": special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", mask_takes_blanks=False),
}
MAX_WORDS = 2_000_000
"""Largest number of different words to count, 400 MB. Once it is reached, later texts count for known words only."""
COVERAGE = 0.9995
"""Share of the text whose characters become pieces, as in SentencePiece: the rarest ones are unknown."""

Texts = Callable[[], Iterable[str]]


def train_unigram_vocabulary(texts: Texts, size: int, family: Family, *, uncased: bool) -> Tokenizer:
    """Train a tokenizer with `size` pieces, fewer where the texts have no more. Raises ConfigError for no text."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(_normalizers(family, uncased))
    special, first = _SPECIAL[family], _FIRST[family]
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


def _normalizers(family: Family, uncased: bool) -> list[normalizers.Normalizer]:
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
