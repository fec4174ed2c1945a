"""Text to WordPiece ids, and back: every piece knows which code points of the text it came from."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bert.encoding import Encoding, Ints, Pieces, Window
from bert.errors import CheckpointError, InputError, TextTooLongError
from bert.wordpiece import (
    SPECIAL_PIECES,
    extend_over_marks,
    from_vocabulary,
    splits_at_spaces,
    stated_config,
)

__all__ = ["Encoding", "Pieces", "Tokenizer", "Window"]


class Tokenizer:
    """WordPiece around the `tokenizers` library; safe to use from several threads.

    A text that contains "[SEP]" is read as those five characters: only this class places special tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a backend; raises CheckpointError if BERT's special pieces are not in its vocabulary."""
        special = {piece: backend.token_to_id(piece) for piece in SPECIAL_PIECES}
        found = [token_id for token_id in special.values() if token_id is not None]
        if len(found) < len(special):
            missing = ", ".join(piece for piece, token_id in special.items() if token_id is None)
            raise CheckpointError(
                f"the vocabulary lacks {missing}: only WordPiece tokenizers with BERT's special pieces are read"
            )
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self._known_pieces = dict[int, str]()
        """Pieces that `id_to_token` has looked up."""
        self.vocab_size: int = backend.get_vocab_size()
        self.splits_at_spaces = splits_at_spaces(backend)
        """True where a text's pieces are those of its parts between spaces, one after the other."""
        self.splits_chinese = self.splits_at_spaces and backend.normalizer.handle_chinese_chars
        """True where that holds for each Chinese character too."""
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = found

    @classmethod
    def load(cls, path: Path, *, lowercase: bool | None = None) -> "Tokenizer":
        """Read `tokenizer.json` or `vocab.txt`, given itself or its folder.

        `lowercase` counts for `vocab.txt` only; None asks `tokenizer_config.json` beside it, then the
        vocabulary. Raises CheckpointError.
        """
        files = [path / "tokenizer.json", path / "vocab.txt"] if path.is_dir() else [path]
        file = next((f for f in files if f.is_file()), None)
        if file is None:
            raise CheckpointError(
                f"{path} holds neither tokenizer.json nor vocab.txt, and no other tokenizer is read"
            )
        if file.suffix == ".txt":
            return cls(from_vocabulary(file, lowercase))
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
        return cls.parse(content, file)

    @classmethod
    def parse(cls, content: bytes, file: Path) -> "Tokenizer":
        """Read the content of a `tokenizer.json`; raises CheckpointError, which names the file."""
        try:
            return cls(tokenizers.Tokenizer.from_buffer(content))
        except CheckpointError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{file} cannot be read as a tokenizer: {error}") from None

    def save(self, folder: Path, *, segments: bool = True) -> None:
        """Write `tokenizer.json`, and for `transformers` `tokenizer_config.json` beside it.

        Without `segments` that says that the model takes no segment ids.
        """
        self._backend.save(str(folder / "tokenizer.json"))
        if config := stated_config(self._backend):
            inputs = {} if segments else {"model_input_names": ["input_ids", "attention_mask"]}
            text = json.dumps({**config, **inputs}, indent=2) + "\n"
            (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

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

    def pieces(self, texts: Sequence[str], *, only_ids: bool = False) -> list[Pieces]:
        """Tokenise texts without special tokens and without cutting anything.

        Releases the interpreter's lock. Raises InputError for a text that is not valid Unicode (one with a lone
        surrogate). With `only_ids` it takes a third less; a text is tokenised again if more is asked for after all.
        """
        if only_ids:
            found = zip(texts, self.ids(texts), strict=True)
            return [Pieces.of_ids(np.array(ids, np.int32), partial(self._piece, text)) for text, ids in found]
        try:
            encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"a text is not valid Unicode: {error}") from None
        return [_to_pieces(text, e) for text, e in zip(texts, encoded, strict=True)]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of `pieces` alone: nothing is worked out in Python. Raises InputError as `pieces` does."""
        try:
            encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"a text is not valid Unicode: {error}") from None
        return [each.ids for each in encoded]

    def single(self, pieces: Pieces, max_tokens: int | None = None, *, truncate: bool = False) -> Encoding:
        """Return [CLS] text [SEP]; raises TextTooLongError over `max_tokens` unless `truncate`."""
        tokens = len(pieces) + 2
        if max_tokens is None or tokens <= max_tokens:
            return self._join([pieces])
        if not truncate:
            raise TextTooLongError(tokens, max_tokens)
        return self._join([pieces.slice(0, _room(max_tokens, 2))], truncated=True)

    def pair(
        self, first: Pieces, second: Pieces, max_tokens: int | None = None, *, truncate: bool = False
    ) -> Encoding:
        """Return [CLS] first [SEP] second [SEP]; raises TextTooLongError over `max_tokens` unless `truncate`.

        Truncation takes a piece at a time from the end of the longer text.
        """
        tokens = len(first) + len(second) + 3
        if max_tokens is None or tokens <= max_tokens:
            return self._join([first, second])
        if not truncate:
            raise TextTooLongError(tokens, max_tokens)
        keep_first, keep_second = longest_first(len(first), len(second), _room(max_tokens, 3))
        return self._join([first.slice(0, keep_first), second.slice(0, keep_second)], truncated=True)

    def windows(
        self, pieces: Pieces, max_tokens: int, stride: int, prefix: Pieces | None = None
    ) -> list[Window]:
        """Cut a text into windows that fit the model; neighbours share `stride` pieces, at most half a window.

        With a `prefix` (a question) each window is [CLS] prefix [SEP] window [SEP], else [CLS] window [SEP].
        An empty text gives one window. Raises InputError if the prefix leaves no room.
        """
        if stride < 0:
            raise InputError(f"stride ({stride}) must be at least 0")
        room = max_tokens - 2 - (len(prefix) + 1 if prefix is not None else 0)
        if room < 1:
            taken = "special tokens leave" if prefix is None else f"question's {len(prefix)} pieces leave"
            raise InputError(f"the {taken} no room for the text in {max_tokens} tokens")
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
        return Encoding.of_texts(texts, self.cls_id, self.sep_id, truncated=truncated)

    def _piece(self, text: str) -> Pieces:
        return self.pieces([text])[0]


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


def _to_pieces(text: str, encoded: tokenizers.Encoding) -> Pieces:
    ids: Ints = np.array(encoded.ids, np.int32)
    offsets: NDArray[np.int32] = np.array(encoded.offsets, np.int32).reshape(-1, 2)
    word_ids: Ints = np.array(encoded.word_ids, np.int32)
    if not text.isascii():
        extend_over_marks(text, offsets)
    return Pieces(ids, offsets, word_ids)
