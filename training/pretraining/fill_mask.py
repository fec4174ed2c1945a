"""Guesses of a pretrained model for masked words of held-out sentences."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus, Document
from training.pretraining.batch import collate
from training.pretraining.examples.base import Bools, Ints, MaskedExample
from training.pretraining.objectives.base import Objective

MIN_PIECES, MAX_PIECES = 8, 40
"""Shortest and longest sentence shown: a shorter one says too little of the word."""
CLOSING, OPENING = frozenset(".,;:!?)]}%’'"), frozenset("([{’'")
"""Characters without a space before them, and without one after them; an apostrophe is both."""
MAX_SENTENCES_TRIED = 64
"""Most sentences of a document that are tried for a suitable one."""


@dataclass(frozen=True)
class Gap:
    """A sentence with one word to guess."""

    ids: Ints
    """(T,) pieces, no special tokens."""
    position: int
    """Position of the word, which is one piece."""


@dataclass(frozen=True)
class Filled:
    """Guesses of the model for one gap."""

    text: str
    """Sentence with [MASK] in place of the word."""
    truth: str
    truth_probability: float
    truth_rank: int
    """1 where the model's first guess is right."""
    guesses: tuple[tuple[str, float], ...]
    """Likeliest pieces with their probabilities."""


def gaps(
    corpus: Corpus,
    tokenizer: Tokenizer,
    count: int,
    seed: int = 0,
    split: str = "held_out",
    max_pieces: int = MAX_PIECES,
) -> list[Gap]:
    """Choose up to `count` sentences of a split, spread over its documents, and a word of each.

    The word is one piece of letters, no digits or punctuation. No sentence has more than `max_pieces`.
    """
    rng = np.random.default_rng(seed)
    places = [(entry, index) for entry in corpus.entries(split) for index in range(int(entry["documents"]))]
    found: list[Gap] = []
    # Several rounds where there are fewer documents than sentences wanted.
    for _ in range(-(-count // max(1, len(places)))):
        for place in rng.permutation(len(places)):
            if len(found) == count:
                return found
            entry, index = places[place]
            gap = _gap(corpus.shard(entry).document(index), tokenizer, rng, max_pieces)
            if gap and not any(np.array_equal(gap.ids, other.ids) for other in found):
                found.append(gap)
    return found


@torch.no_grad()
def fill(objective: Objective, tokenizer: Tokenizer, chosen: Sequence[Gap], top_k: int = 5) -> list[Filled]:
    """Return the model's guesses for each gap; empty if the objective has no MLM head.

    Guesses are pieces of the tokenizer, without the padding rows of the embedding table.
    """
    if not chosen:
        return []
    device, was_training = next(objective.parameters()).device, objective.training
    objective.eval()
    examples = [_example(gap, tokenizer) for gap in chosen]
    longest = max(len(example.ids) for example in examples)
    logits = objective.masked_logits(collate(examples, tokenizer.pad_id, longest, packed=False).to(device))
    objective.train(was_training)
    if logits is None:
        return []
    probabilities = logits[:, : tokenizer.vocab_size].float().softmax(-1).cpu()  # (N, V)
    return [_filled(gap, row, tokenizer, top_k) for gap, row in zip(chosen, probabilities, strict=True)]


def readable(pieces: Sequence[str]) -> str:
    """Join pieces to readable text: no space inside words, before a comma or between Chinese characters."""
    text = ""
    for piece in pieces:
        if piece.startswith("##"):
            text += piece[2:]
        else:
            text += ("" if not text or _joins(text[-1], piece) else " ") + piece
    return text


def _gap(document: Document, tokenizer: Tokenizer, rng: np.random.Generator, max_pieces: int) -> Gap | None:
    """Choose a sentence of suitable length in a document, and a word in it."""
    lengths = np.diff(document.sentences)
    fitting = np.flatnonzero((lengths >= MIN_PIECES) & (lengths <= min(MAX_PIECES, max_pieces)))
    for sentence in rng.permutation(fitting)[:MAX_SENTENCES_TRIED]:
        part = slice(document.sentences[sentence], document.sentences[sentence + 1])
        ids, continues = document.tokens[part], document.continues[part]
        words = list(_words(ids, continues, tokenizer))
        if words:
            return Gap(ids, words[rng.integers(len(words))])
    return None


def _words(ids: Ints, continues: Bools, tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the positions of pieces that are a word of letters by themselves."""
    goes_on = np.append(continues[1:], False)
    for position in np.flatnonzero(~continues & ~goes_on):
        if tokenizer.id_to_token(int(ids[position])).isalpha():
            yield int(position)


def _example(gap: Gap, tokenizer: Tokenizer) -> MaskedExample:
    original = np.concatenate([[tokenizer.cls_id], gap.ids, [tokenizer.sep_id]]).astype(np.int32)
    position = gap.position + 1
    ids = original.copy()
    ids[position] = tokenizer.mask_id
    special = np.zeros(len(ids), np.bool_)
    special[[0, -1]] = True
    at = np.array([position], np.int32)
    return MaskedExample(ids, np.zeros(len(ids), np.int8), at, original[at], special, original)


def _filled(gap: Gap, probabilities: torch.Tensor, tokenizer: Tokenizer, top_k: int) -> Filled:
    truth = int(gap.ids[gap.position])
    best = probabilities.topk(min(top_k, len(probabilities)))
    pieces = [tokenizer.id_to_token(int(i)) for i in gap.ids]
    pieces[gap.position] = "[MASK]"
    return Filled(
        text=readable(pieces),
        truth=tokenizer.id_to_token(truth),
        truth_probability=float(probabilities[truth]),
        truth_rank=int((probabilities > probabilities[truth]).sum()) + 1,
        guesses=tuple(
            (tokenizer.id_to_token(int(i)), float(p)) for p, i in zip(best.values, best.indices, strict=True)
        ),
    )


def _joins(before: str, piece: str) -> bool:
    return piece in CLOSING or before in OPENING or (_is_wide(before) and _is_wide(piece[0]))


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"
