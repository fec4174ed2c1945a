"""[MASK] in texts, and the pieces that a masked language model puts there. M masks, V vocabulary, K candidates.

[MASK] is the mask of every model; one that writes it otherwise (<mask>) takes its own way too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bert.encoding import MASK_WORD, Encoding, Ints, Pieces
from bert.errors import CheckpointError, InputError
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Positions, Task, softmax
from bert.tokenizer import Tokenizer

MASK = "[MASK]"
MAX_CANDIDATES = 100
"""Largest number of candidates for a mask; a whole vocabulary's probabilities would fill the memory of a service."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of the vocabulary, its probability, and the text with the piece in the mask's place."""

    token: str
    id: int
    score: float
    sequence: str


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One [MASK], text[start:end] in code points, and its candidates, best first."""

    start: int
    end: int
    candidates: Sequence[Candidate]


@dataclass(frozen=True, slots=True, eq=False)
class SplitText:
    """A text cut at its masks."""

    parts: Sequence[str]
    """M + 1 texts for the tokenizer: before, between and after the masks."""
    masks: Ints
    """(M, 2): start and end of each mask, in code points."""


def mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of the mask; raises CheckpointError for a tokenizer without one."""
    if tokenizer.mask_id is None:
        raise CheckpointError("the tokenizer has no mask, neither [MASK] nor <mask>: no text can be filled")
    return tokenizer.mask_id


def split(tokenizer: Tokenizer, text: str) -> SplitText:
    """Cut a text at its masks; where blanks before a mask belong to it, no part has them."""
    written = {MASK, tokenizer.mask_piece or MASK}
    masks = [found.span() for found in re.finditer("|".join(map(re.escape, written)), text)]
    starts, ends = [0, *(end for _, end in masks)], [*(start for start, _ in masks), len(text)]
    parts = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if tokenizer.mask_takes_blanks:
        parts[:-1] = [part.rstrip() for part in parts[:-1]]
    return SplitText(parts, np.array(masks, np.int32).reshape(-1, 2))


def pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Pieces]:
    """Tokenise texts in which a mask is the special token. Every other special piece is read as its characters.

    A mask is of no word (MASK_WORD). Raises InputError for a text that is not valid Unicode.
    """
    found = [split(tokenizer, text) for text in texts]
    read = iter(tokenizer.pieces([part for each in found for part in each.parts]))
    return [joined(tokenizer, each, [next(read) for _ in each.parts]) for each in found]


def encode(tokenizer: Tokenizer, text: Pieces, max_tokens: int) -> Encoding:
    """Return [CLS] text [SEP]; raises InputError without a mask, TextTooLongError over `max_tokens`."""
    if not (text.word_ids == MASK_WORD).any():
        raise InputError(f"has no {MASK}: write it where a word or a piece of one is wanted")
    return tokenizer.single(text, max_tokens)


def mask_positions(encoding: Encoding) -> NDArray[np.intp]:
    """Return the positions (M,) of the masks among the encoding's tokens."""
    return np.flatnonzero(encoding.word_ids == MASK_WORD)


def hide(text: Pieces, indices: Sequence[int], mask: int) -> Pieces:
    """Return a copy with masks in place of the pieces at `indices`."""
    ids, word_ids, at = text.ids.copy(), text.word_ids.copy(), list(indices)
    ids[at], word_ids[at] = mask, MASK_WORD
    return Pieces(ids, text.offsets, word_ids)


def best_pieces(logits: Floats, count: int = MAX_CANDIDATES) -> Floats:
    """Return ids and probabilities (M, 2, K) of the best pieces in falling order, from logits (M, V).

    K is the smaller of `count` and V; pieces of equal logits are in the order of their ids. Ids are whole numbers in
    float32, exact up to 2 ** 24: so they travel as any other head's output does.
    """
    k = min(count, logits.shape[-1])
    best = np.sort(np.argpartition(logits, -k, axis=-1)[:, -k:], axis=-1)  # (M, K)
    order = np.argsort(-np.take_along_axis(logits, best, axis=-1), axis=-1, kind="stable")
    best = np.take_along_axis(best, order, axis=-1)
    shares = np.take_along_axis(softmax(logits), best, axis=-1)
    found: Floats = np.stack([best.astype(np.float32), shares.astype(np.float32)], axis=1)
    return found


def decode(
    text: str, encoding: Encoding, best: Floats, tokenizer: Tokenizer, top_k: int = 5
) -> Iterator[FilledMask]:
    """Turn `best_pieces` (M, 2, K) of one text into its masks, in the order of the text, each with `top_k` candidates.

    A mask's candidates are made when it is asked for: a large request has more of them than should be in memory at
    once. Rows of the embedding without a piece, which some checkpoints have for their matrices' sake, are left out.
    Raises ValueError if `best` lacks a row for each mask.
    """
    positions = mask_positions(encoding)
    if best.shape[:2] != (len(positions), 2):
        raise ValueError(f"best pieces have shape {best.shape}; ({len(positions)}, 2, K) is needed")
    offsets = encoding.offsets[positions].tolist()
    return (
        _filled(text, start, end, tokenizer, rows, top_k)
        for (start, end), rows in zip(offsets, best, strict=True)
    )


def _filled(text: str, start: int, end: int, tokenizer: Tokenizer, best: Floats, top_k: int) -> FilledMask:
    """Return the mask at [start, end) with the first `top_k` of its best pieces (2, K).

    Plain Python: numpy's indexing gives up the interpreter's lock and takes it back at once, and a thread that does so
    every 0.2 ms keeps another that waits for the lock from ever getting it (up to 1 s was measured).
    """
    known = ((int(i), score) for i, score in zip(*best.tolist(), strict=True) if tokenizer.has_id(int(i)))
    candidates = (
        Candidate(tokenizer.id_to_token(i), i, score, fill(text, start, end, *tokenizer.written(i)))
        for i, score in islice(known, top_k)
    )
    return FilledMask(start, end, tuple(candidates))


def fill(text: str, start: int, end: int, written: str, goes_on: bool) -> str:
    """Return the text with a piece, as it is written, in place of [start, end).

    A piece that goes on with a word (##ing) is joined to what stands before: the space between is taken out. One that
    brings a blank with it gives that up where there is one.
    """
    before = text[:start]
    if goes_on:
        before = before.rstrip() or before
    elif not before or before[-1].isspace():
        written = written.removeprefix(" ")
    return before + written + text[end:]


def joined(tokenizer: Tokenizer, text: SplitText, read: Sequence[Pieces]) -> Pieces:
    """Return a text's pieces from those of its parts, with a mask after each part but the last."""
    counts = [len(part) for part in read]
    starts = np.insert(text.masks[:, 1], 0, 0)
    offsets = np.concatenate([part.offsets for part in read]) + np.repeat(starts, counts)[:, None]
    words = _before([int(part.word_ids.max(initial=-1)) + 1 for part in read])
    word_ids = np.concatenate([part.word_ids for part in read])
    word_ids = np.where(word_ids < 0, word_ids, word_ids + np.repeat(words, counts))
    places = np.cumsum(counts)[:-1]
    return Pieces(
        np.insert(np.concatenate([part.ids for part in read]), places, mask_id(tokenizer)),
        np.insert(offsets, places, text.masks, axis=0),
        np.insert(word_ids, places, MASK_WORD),
    )


def _before(counts: Sequence[int]) -> NDArray[np.int32]:
    """Return the sum of all counts before each."""
    return (np.cumsum(counts) - counts).astype(np.int32)


class FillMaskTask(Task):
    """The pieces that may stand in the place of each [MASK]."""

    name = "fill_mask"
    head = Head.VOCABULARY
    architectures = ("BertForMaskedLM", "BertForPreTraining")
    fixed_outputs = 0  # the head is as wide as the vocabulary
    compares = Compared.NOTHING  # of a whole vocabulary's pieces the best are often equally good
    reads_words = True

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: a score for each piece of the vocabulary."""
        return "logits", vocab_size

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the positions of the masks."""
        return mask_positions(encoding)

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode a text with so many of its pieces hidden, at even distances."""
        visible = text[0].slice(0, spec.max_tokens - tokenizer.form.special_tokens(1))
        indices = [part * len(visible) // (masks + 1) for part in range(1, masks + 1)]
        return [tokenizer.single(hide(visible, indices, mask_id(tokenizer)), spec.max_tokens, truncate=True)]

    def shorten(self, output: Floats) -> Floats:
        """Return the best pieces of each mask: many masks would hold gigabytes of a whole vocabulary's scores."""
        return best_pieces(output)

    def self_test_scores(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return the best pieces' probabilities without their ids: two that are equally good may trade places."""
        return [scores[:, 1] for scores in outputs]
