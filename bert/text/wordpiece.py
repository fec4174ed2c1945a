"""BERT's own tokenisation from a vocabulary file."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert.errors import CheckpointError
from bert.files import read_for_checkpoint
from bert.text.stated import BERT_PAIR, ROBERTA_PAIR, StatedTokens, special_pieces, special_template

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET_PIECES = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
"""Special pieces of MPNet, whose vocabulary has BERT's as plain pieces too."""
_BERT = special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", mask_takes_blanks=False)
_MPNET = special_pieces("<s>", "</s>", "<pad>", "[UNK]", "<mask>")
CLASSES = ("Bert", "DistilBert", "Electra", "Ernie", "MPNet", "Basic")
"""Classes of `transformers`, without "Tokenizer", whose `vocab.txt` is read."""


def from_vocabulary(file: Path, lowercase: bool | None = None) -> tokenizers.Tokenizer:
    """Build the tokenizer of a `vocab.txt`, a piece a line, its line number the id.

    A `tokenizer_config.json` beside it is obeyed; `lowercase` overrides what it says of the case. Raises CheckpointError.
    """
    pieces = _read_pieces(file)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    stated = StatedTokens.read(file.parent)
    settings = _settings(stated)
    if lowercase is None:
        lowercase = settings.get("do_lower_case")
    if lowercase is None:
        lowercase = _is_lowercase(pieces)
    is_mpnet = vocabulary.keys() >= set(MPNET_PIECES)
    defaults = _MPNET if is_mpnet else _BERT
    unk = stated.special_piece("unk", defaults["unk"]).content
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    special = stated.add_to(backend, defaults, needs_all=False)
    if "cls" in special and "sep" in special:
        backend.post_processor = special_template(special, ROBERTA_PAIR if is_mpnet else BERT_PAIR)
    return backend


def stated_config(backend: tokenizers.Tokenizer) -> dict[str, object]:
    """Return the `tokenizer_config.json` of BERT's own tokenizer, {} for another.

    `transformers` takes a BERT for uncased without it, whatever its tokenizer.json says.
    """
    normalizer, added = backend.normalizer, backend.get_added_tokens_decoder().values()
    is_bert = has_bert_words(backend) and isinstance(normalizer, normalizers.BertNormalizer)
    if not is_bert or not {token.content for token in added} <= set(SPECIAL_PIECES):
        return {}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": normalizer.handle_chinese_chars,
    }


def has_bert_words(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether a tokenizer's own words are BERT's, so that no piece holds a blank or lies in two words."""
    return isinstance(backend.model, models.WordPiece) and isinstance(
        backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer
    )


def splits_at_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Tell whether a tokenizer normalises and splits as BERT does, so that parts between spaces are independent."""
    added = backend.get_added_tokens_decoder().values()
    return (
        isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and all(token.special for token in added)  # others are looked for in the text before it is split
    )


def _read_pieces(file: Path) -> list[str]:
    try:
        text = read_for_checkpoint(file).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        # Not splitlines(): the Chinese vocabulary has U+2028 as a piece.
        pieces = text.rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8: {error}") from None
    if (different := len(set(pieces))) != len(pieces):
        raise CheckpointError(f"{file} has {len(pieces)} lines but only {different} different pieces")
    return pieces


def assumed_case(file: Path) -> str:
    """Return a sentence on the case that `from_vocabulary` assumes where no `tokenizer_config.json` states it."""
    is_lower = _is_lowercase(_read_pieces(file))
    found = "no capitals, so texts are lower-cased" if is_lower else "capitals, so texts keep theirs"
    return (
        f"{file.name} has {found}; a tokenizer_config.json beside it with "
        f'"do_lower_case": {"false" if is_lower else "true"} overrules that'
    )


def _settings(stated: StatedTokens) -> dict[str, bool]:
    """Return what a `tokenizer_config.json` says of the normalisation; nothing where there is none."""
    names = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")
    return {name: stated.flag(name, default=True) for name in names if stated.config.get(name) is not None}


def _is_lowercase(pieces: list[str]) -> bool:
    """Ask the vocabulary: a cased one has capitals outside its special pieces."""
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith(("[", "<")))
