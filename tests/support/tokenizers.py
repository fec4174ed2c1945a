"""Small tokenizers of each kind, trained on a few texts of many scripts, as their families publish them."""

import base64
import json
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TRAINING_TEXTS = (
    "Ada Lovelace met Charles Babbage in London. He gave a talk about his engine; she wrote the notes.",
    "the film was warm and funny , not dull at all . the film was long , and how long it was !",
    "Angela Merkel met Zoë in Munich and in Paris. Who met whom, and where? It isn't known, they'll say.",
    "Ünïcödé, naïve café, Dvořák, Straße, İstanbul, ΣΊΣΥΦΟΣ and 12,345.67 € or 1990s prices",
    "北京大学的李明去了上海。今天天气很好，我们去公园。",
    "ذهب أحمد إلى القاهرة مُحَمَّد",
    "משה גר בירושלים, ישראל שָׁלוֹם",
    "한국어 かな カタカナ 漢字 ไทย हिन्दी தமிழ்",
    "Привет, как дела? Москва и Санкт-Петербург",
)
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
DEBERTA = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
MPNET = ("<s>", "<pad>", "</s>", "[UNK]")
_PLAIN = sorted({c for text in TRAINING_TEXTS for c in text if c != " "} | set(string.printable[:94]))


def _wordpiece() -> tokenizers.Tokenizer:
    """BERT, uncased."""
    backend = _trained_wordpiece(BERT)
    backend.post_processor = _template(backend, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def _wordpiece_mpnet() -> tokenizers.Tokenizer:
    """MPNet's: BERT's pieces, RoBERTa's names and pairs."""
    backend = _trained_wordpiece(MPNET)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    backend.post_processor = _template(backend, "<s>", "</s>", "<s> $A </s> </s> $B </s>")
    return backend


def _trained_wordpiece(special: tuple[str, ...]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    alphabet = [c.lower() for c in _PLAIN if len(c.lower()) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TRAINING_TEXTS * 3, trainer)
    return backend


def _bpe() -> tokenizers.Tokenizer:
    """RoBERTa's: bytes, <s> A </s></s> B </s>, a mask that takes the space before it."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(ROBERTA),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXTS * 3, trainer)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return backend


def _bpe_modern() -> tokenizers.Tokenizer:
    """ModernBERT's: bytes after NFC, BERT's names behind the pieces, and runs of blanks that are found in texts."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token=None))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TRAINING_TEXTS * 3, trainer)
    backend.add_tokens([AddedToken(" " * blanks, normalized=True) for blanks in range(8, 1, -1)])
    special = ("[UNK]", "[CLS]", "[SEP]", "[PAD]")
    backend.add_special_tokens([*special, AddedToken("[MASK]", lstrip=True)])
    backend.post_processor = _template(backend, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def _gemma() -> tokenizers.Tokenizer:
    """mmBERT's, which is Gemma's: BPE over whole texts with ▁ for blanks, and bytes for signs that it lacks."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # no piece goes over a blank
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=_PLAIN, show_progress=False)
    trained.train_from_iterator(TRAINING_TEXTS[:4] * 3, trainer)
    state = json.loads(trained.to_str())["model"]
    first = [*GEMMA, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [*first, *(piece for piece in state["vocab"] if piece not in first)]
    vocabulary, merges = {piece: at for at, piece in enumerate(pieces)}, [tuple(m) for m in state["merges"]]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = trained.normalizer
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(list(GEMMA))
    backend.add_tokens([AddedToken("\n" * count, normalized=False) for count in (2, 3)])
    backend.post_processor = _template(backend, "<bos>", "<eos>", "<bos> $A <eos> $B:1 <eos>:1")
    return backend


def _unigram() -> tokenizers.Tokenizer:
    """XLM-R's: Unigram over words, <s> A </s></s> B </s>, a mask that takes the space before it."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    _train_unigram(backend, ROBERTA)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    backend.post_processor = _template(backend, "<s>", "</s>", "<s> $A </s> </s> $B </s>")
    return backend


def _unigram_albert() -> tokenizers.Tokenizer:
    """ALBERT's: Unigram, uncased, BERT's names but for <pad> and <unk>."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    _train_unigram(backend, ALBERT)
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    backend.post_processor = _template(backend, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def _unigram_deberta() -> tokenizers.Tokenizer:
    """DeBERTa-v3's: Unigram over a text whose blanks are parts of the words, BERT's names and pairs."""
    backend = tokenizers.Tokenizer(models.Unigram())
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), blanks])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    _train_unigram(backend, DEBERTA, "[UNK]")
    backend.add_special_tokens([AddedToken("[MASK]")])
    backend.post_processor = _template(backend, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def _train_unigram(backend: tokenizers.Tokenizer, special: tuple[str, ...], unknown: str = "<unk>") -> None:
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=list(special),
        unk_token=unknown,
        initial_alphabet=_PLAIN,
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXTS * 3, trainer)


def _template(backend: tokenizers.Tokenizer, cls: str, sep: str, pair: str) -> processors.TemplateProcessing:
    ids = [(piece, backend.token_to_id(piece)) for piece in (cls, sep)]
    return processors.TemplateProcessing(single=f"{cls} $A {sep}", pair=pair, special_tokens=ids)


_MAKERS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], str]] = {
    "wordpiece": (_wordpiece, "BertTokenizer"),
    "wordpiece_mpnet": (_wordpiece_mpnet, "MPNetTokenizer"),
    "bpe": (_bpe, "RobertaTokenizer"),
    "bpe_modern": (_bpe_modern, "PreTrainedTokenizerFast"),
    "gemma": (_gemma, "PreTrainedTokenizerFast"),
    "unigram": (_unigram, "XLMRobertaTokenizer"),
    "unigram_albert": (_unigram_albert, "AlbertTokenizer"),
    "unigram_deberta": (_unigram_deberta, "DebertaV2Tokenizer"),
}
KINDS = tuple(_MAKERS)


@cache
def tokenizer_json(kind: str) -> str:
    """Return the `tokenizer.json` of one of KINDS."""
    make, _ = _MAKERS[kind]
    content: str = make().to_str()
    return content


def backend_of(kind: str) -> tokenizers.Tokenizer:
    """Return a new tokenizer of the `tokenizers` library, one of KINDS: the reference."""
    return tokenizers.Tokenizer.from_str(tokenizer_json(kind))


def write_tokenizer(folder: Path, kind: str) -> int:
    """Write `tokenizer.json` and `tokenizer_config.json` of one of KINDS; return the size of its vocabulary."""
    _, name = _MAKERS[kind]
    (folder / "tokenizer.json").write_text(tokenizer_json(kind), encoding="utf-8")
    config = {"tokenizer_class": name, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    size: int = backend_of(kind).get_vocab_size()
    return size


def with_compiled_normalizer(content: object) -> bytes:
    """Return a `tokenizer.json` whose normalisation is compiled (`precompiled_charsmap`)."""
    values = json.loads(tokenizer_json("unigram"))
    encoded = base64.b64encode(content).decode() if isinstance(content, bytes) else content
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": encoded}
    return json.dumps(values).encode()
