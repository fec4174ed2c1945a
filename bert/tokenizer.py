"""Text to ids, and back: every piece knows which code points of the text it came from."""

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import normalizers

from bert.encoding import Encoding, Ints, Pieces, Window
from bert.errors import InputError, TextTooLongError
from bert.files import atomic_write, read_for_checkpoint
from bert.text import byte_level_bpe, wordpiece
from bert.text.cuts import cut_pattern
from bert.text.damage import check_normalizer, damage_refused
from bert.text.letter_shapes import SHAPES, piece_shapes
from bert.text.offsets import extend_over_marks, offsets_of, trim_spaces, word_ids
from bert.text.special_tokens import hide_special_pieces, mask_id, pad_id, pair_form, unk_id, written
from bert.text.tokenizer_files import from_folder, refuse_code
from bert.text.wordpiece import from_vocabulary, has_bert_words, splits_at_spaces

__all__ = ["Encoding", "Pieces", "Tokenizer", "Window"]


class Tokenizer:
    """WordPiece, byte-level BPE or Unigram by the `tokenizers` library; safe to use from several threads.

    A text that contains "[SEP]" is read as those five characters: only this class places special tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a backend; raises CheckpointError where its special tokens are missing or of an unknown form."""
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self.cut_pattern = cut_pattern(backend)
        """Pattern before whose matches a text can be cut: the pieces stay the same. None where none is known."""
        self._pre_tokenizer = backend.pre_tokenizer
        """The file's own; the backend's keeps special pieces in texts apart too."""
        hide_special_pieces(backend)
        self._backend = backend
        self._known_pieces = dict[int, str]()
        """Pieces that `id_to_token` has looked up."""
        self._written = dict[int, tuple[str, bool]]()
        """Text of the pieces that `written` has looked up."""
        self.vocab_size: int = backend.get_vocab_size()
        normal = backend.normalizer
        self.lowercases = normal is not None and normal.normalize_str("A") == "a"
        """True where texts are lower-cased first."""
        self.splits_at_spaces = splits_at_spaces(backend)
        """True where a text's pieces are those of its parts between spaces, one after the other."""
        self.splits_chinese = self.splits_at_spaces and backend.normalizer.handle_chinese_chars
        """True where that holds for each Chinese character too."""
        self.has_bert_words = has_bert_words(backend)
        """True where the words are BERT's: split at white space and around each punctuation mark."""
        self.form = pair_form(backend)
        """Special tokens around one text and two."""
        self.cls_id, self.sep_id = self.form.cls_id, self.form.sep_id
        self.pad_id = pad_id(backend)
        self.unk_id = unk_id(backend)
        """None where every text has pieces of its own, down to bytes."""
        self.mask_id = mask_id(backend)
        """None for a tokenizer without a mask."""
        mask = backend.get_added_tokens_decoder().get(-1 if self.mask_id is None else self.mask_id)
        self.mask_piece: str | None = mask.content if mask else None
        """Mask as the model's own users write it."""
        self.mask_takes_blanks = bool(mask and mask.lstrip)
        """True where the blanks before a mask belong to it."""
        self.has_letter_shapes = False
        """True where the segments of a lone text are its letter shapes (`bert.text.letter_shapes`)."""

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read `tokenizer.json`, or make it of a vocabulary; `path` is a folder, a `tokenizer.json` or a `vocab.txt`.

        Raises CheckpointError.
        """
        file = path / "tokenizer.json" if path.is_dir() else path
        if path.is_dir():
            refuse_code(path)
        if path.is_dir() and not file.is_file():
            return cls(from_folder(path))
        if file.suffix == ".txt":
            return cls(from_vocabulary(file))
        return cls.parse(read_for_checkpoint(file), file)

    @classmethod
    def parse(cls, content: bytes, file: Path) -> "Tokenizer":
        """Read the content of a `tokenizer.json`; raises CheckpointError, which names the file."""
        with damage_refused(file, "a tokenizer"):
            json.loads(content, object_hook=check_normalizer)
            return cls(tokenizers.Tokenizer.from_buffer(content))

    def save(self, folder: Path, *, segments: bool = True, max_tokens: int | None = None) -> None:
        """Write `tokenizer.json`, and for `transformers` `tokenizer_config.json` beside it.

        Without `segments` that says that the model takes no segment ids; `max_tokens` is the model's longest text.
        Raises OSError.
        """
        config = wordpiece.stated_config(self._backend) or byte_level_bpe.stated_config(self._backend)
        config = config or self._generic_config()
        inputs = {} if segments else {"model_input_names": ["input_ids", "attention_mask"]}
        longest = {} if max_tokens is None else {"model_max_length": max_tokens}
        text = json.dumps({**config, **inputs, **longest}, indent=2, ensure_ascii=False) + "\n"
        atomic_write(folder / "tokenizer_config.json", text)
        atomic_write(folder / "tokenizer.json", self.to_json())  # the one that is looked for comes last

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json`."""
        ours, self._backend.pre_tokenizer = self._backend.pre_tokenizer, self._pre_tokenizer
        try:
            return str(self._backend.to_str(pretty=True))
        finally:
            self._backend.pre_tokenizer = ours

    def _generic_config(self) -> dict[str, object]:
        """Return a `tokenizer_config.json` by which `transformers` takes the file as it is: other classes rebuild it."""
        ids = {
            "cls": self.cls_id,
            "sep": self.sep_id,
            "pad": self.pad_id,
            "unk": self.unk_id,
            "mask": self.mask_id,
        }
        names = {f"{name}_token": self.id_to_token(i) for name, i in ids.items() if i is not None}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **names}

    def lower_cased(self) -> "Tokenizer":
        """Return a tokenizer that lower-cases texts first; offsets stay those of the texts as they are."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.pre_tokenizer = self._pre_tokenizer
        own = backend.normalizer
        if isinstance(own, normalizers.BertNormalizer):
            backend.normalizer = normalizers.BertNormalizer(
                clean_text=own.clean_text,
                handle_chinese_chars=own.handle_chinese_chars,
                strip_accents=bool(own.strip_accents),  # None would follow `lowercase`
                lowercase=True,
            )
        else:
            rest = [own] if own is not None else []
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
        return Tokenizer(backend)

    def with_letter_shapes(self, wanted: bool = True) -> "Tokenizer":
        """Return this tokenizer, or one like it whose segments are letter shapes."""
        if wanted == self.has_letter_shapes:
            return self
        other = copy.copy(self)
        other.has_letter_shapes = wanted
        return other

    @property
    def segments(self) -> int:
        """Number of segments that its texts may have."""
        return SHAPES if self.has_letter_shapes else self.form.second_segment + 1

    def special_ids(self) -> frozenset[int]:
        """Return the ids of all special pieces, those without a task of their own among them."""
        added = self._backend.get_added_tokens_decoder().items()
        known = (*self.form.between, self.cls_id, self.sep_id, self.pad_id, self.unk_id, self.mask_id)
        found = {number for number, token in added if token.special}
        return frozenset(found.union(number for number in known if number is not None))

    def highest_id(self) -> int:
        """Return the highest id that a text can be given; pieces may leave numbers out, so that it passes their count."""
        return max(*self._backend.get_vocab().values(), *self.special_ids())

    def has_id(self, token_id: int) -> bool:
        """Tell whether an id is a piece's."""
        try:
            self.id_to_token(token_id)
        except InputError:
            return False
        return True

    def token_to_id(self, piece: str) -> int | None:
        """Return the id of a piece, None if the vocabulary lacks it."""
        found: int | None = self._backend.token_to_id(piece)
        return found

    def id_to_token(self, token_id: int) -> str:
        """Return the piece of an id; raises InputError outside the vocabulary.

        The library is asked once for each id. It gives up the interpreter's lock at each call and takes it back before
        a waiting thread has woken up: 100,000 calls in a row kept an event loop waiting for 80 ms.
        """
        known = self._known_pieces.get(token_id)
        if known is not None:
            return known
        try:
            piece = self._backend.id_to_token(int(token_id))
        except OverflowError:  # negative, or over 32 bits
            piece = None
        if piece is None:
            raise InputError(f"token id {token_id} is not one of the vocabulary's {self.vocab_size}")
        self._known_pieces[token_id] = piece
        return piece

    def written(self, token_id: int) -> tuple[str, bool]:
        """Return the characters of a piece, and whether it goes on with the word before it.

        Raises InputError outside the vocabulary.
        """
        found = self._written.get(token_id)
        if found is None:
            found = self._written[token_id] = written(self._backend, self.id_to_token(token_id))
        return found

    def continuing_pieces(self) -> NDArray[np.bool_]:
        """Return (highest id + 1,) True for pieces that go on with the word before them."""
        ids = range(self.highest_id() + 1)
        return np.array([self.has_id(i) and self.written(i)[1] for i in ids], np.bool_)

    def pieces(self, texts: Sequence[str], *, only_ids: bool = False) -> list[Pieces]:
        """Tokenise texts without special tokens and without cutting anything.

        Releases the interpreter's lock. Raises InputError for a text that is not valid Unicode (one with a lone
        surrogate). With `only_ids` it takes a third less; a text is tokenised again if more is asked for after all.
        """
        if only_ids and not self.has_letter_shapes:
            found = zip(texts, self.ids(texts), strict=True)
            return [Pieces.of_ids(np.array(ids, np.int32), partial(self._piece, text)) for text, ids in found]
        try:
            encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"a text is not valid Unicode: {error}") from None
        return [self._to_pieces(text, e) for text, e in zip(texts, encoded, strict=True)]

    def _to_pieces(self, text: str, encoded: tokenizers.Encoding) -> Pieces:
        ids: Ints = np.array(encoded.ids, np.int32)
        offsets = offsets_of(encoded)
        if self.has_bert_words:
            words: Ints | Callable[[], Ints] = np.array(encoded.word_ids, np.int32)
        else:
            trim_spaces(text, offsets)
            words = partial(_words, text, offsets, encoded)
        if not text.isascii():
            extend_over_marks(text, offsets)
        pieces = Pieces(ids, offsets, words)
        if self.has_letter_shapes:
            pieces.segments = piece_shapes(text, offsets, pieces.word_ids)
        return pieces

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of `pieces` alone: nothing is worked out in Python. Raises InputError as `pieces` does."""
        try:
            encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"a text is not valid Unicode: {error}") from None
        return [each.ids for each in encoded]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of ids, as far as the vocabulary keeps it; raises InputError outside the vocabulary."""
        for token_id in ids:
            self.id_to_token(token_id)
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def single(self, pieces: Pieces, max_tokens: int | None = None, *, truncate: bool = False) -> Encoding:
        """Return [CLS] text [SEP]; raises TextTooLongError over `max_tokens` unless `truncate`."""
        tokens = len(pieces.ids) + 2
        if max_tokens is None or tokens <= max_tokens:
            return self._join([pieces])
        if not truncate:
            raise TextTooLongError(tokens, max_tokens)
        return self._join([pieces.slice(0, _room(max_tokens, 2))], truncated=True)

    def pair(
        self,
        first: Pieces,
        second: Pieces,
        max_tokens: int | None = None,
        *,
        truncate: bool = False,
        keep_second: bool = False,
    ) -> Encoding:
        """Return [CLS] first [SEP] second [SEP], or what stands for it in `form`.

        Raises TextTooLongError over `max_tokens` unless `truncate`.

        Truncation takes a piece at a time from the end of the longer text; with `keep_second` from the first alone, and
        InputError is raised where the second leaves it no room.
        """
        special = self.form.special_tokens(2)
        tokens = len(first) + len(second) + special
        if max_tokens is None or tokens <= max_tokens:
            return self._join([first, second])
        if not truncate:
            raise TextTooLongError(tokens, max_tokens)
        room = _room(max_tokens, special)
        if keep_second and len(second) >= room:
            raise InputError(f"its {len(second)} pieces leave no room for the text in {max_tokens} tokens")
        kept = (
            (room - len(second), len(second)) if keep_second else longest_first(len(first), len(second), room)
        )
        return self._join([first.slice(0, kept[0]), second.slice(0, kept[1])], truncated=True)

    def windows(
        self, pieces: Pieces, max_tokens: int, stride: int, prefix: Pieces | None = None
    ) -> list[Window]:
        """Cut a text into windows that fit the model; neighbours share `stride` pieces, at most half a window.

        With a `prefix` (a question) each window is [CLS] prefix [SEP] window [SEP], else [CLS] window [SEP].
        An empty text gives one window. Raises InputError if the prefix leaves no room.
        """
        if stride < 0:
            raise InputError(f"stride ({stride}) must be at least 0")
        taken = self.form.special_tokens(1 if prefix is None else 2)
        room = max_tokens - taken - (0 if prefix is None else len(prefix))
        if room < 1:
            what = "special tokens leave" if prefix is None else f"question's {len(prefix)} pieces leave"
            raise InputError(f"the {what} no room for the text in {max_tokens} tokens")
        step = room - min(stride, room // 2)
        before = [] if prefix is None else [prefix]
        windows = []
        for start in range(0, max(1, len(pieces)), step):
            stop = min(start + room, len(pieces))
            windows.append(Window(self._join([*before, pieces.slice(start, stop)]), start, stop))
            if stop == len(pieces):
                break
        return windows

    def _join(self, texts: Sequence[Pieces], *, truncated: bool = False) -> Encoding:
        return Encoding.of_texts(texts, self.form, truncated=truncated)

    def _piece(self, text: str) -> Pieces:
        return self.pieces([text])[0]


def _words(text: str, offsets: Ints, encoded: tokenizers.Encoding) -> Ints:
    return word_ids(text, offsets, np.array(encoded.word_ids, np.int32))


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many pieces of each text stay when the longer one loses its last piece until both fit.

    A tie takes from the second (google-research/bert, `_truncate_seq_pair`). Where both texts are cut and `room` is
    odd, the fast tokenizers of `transformers` leave the odd piece to the text that was longer, here the first has it.
    """
    if first + second <= room:
        return first, second
    if min(first, second) * 2 <= room:  # only the longer one is cut
        return (first, room - first) if first < second else (room - second, second)
    return room - room // 2, room // 2


def _room(max_tokens: int, special_tokens: int) -> int:
    """Return how many pieces fit beside the special tokens."""
    if max_tokens < special_tokens:
        raise InputError(f"max_tokens ({max_tokens}) is less than the {special_tokens} special tokens")
    return max_tokens - special_tokens
