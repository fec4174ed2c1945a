"""Guesses of a pretrained model for masked words of held-out sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert.tasks.fill_mask import mask_id
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus, Document
from training.pretraining.examples.base import Ints, MaskedExample
from training.pretraining.objectives.base import Objective
from training.pretraining.pretrain_batch import collate

MIN_PIECES, MAX_PIECES = 8, 40
"""Shortest and longest sentence shown: a shorter one says too little of the word."""
_NO_SPACE = re.compile(
    r" (?=##|[.,;:!?)\]}%’'])|(?<=[(\[{’']) |(?<=[\u2e80-\u9fff\uf900-\uffef]) (?=[\u2e80-\u9fff\uf900-\uffef])"
)
"""Space inside a word, before a comma, after an opening bracket, around an apostrophe, between Chinese characters."""


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


def gaps(corpus: Corpus, tokenizer: Tokenizer, count: int, max_pieces: int = MAX_PIECES) -> list[Gap]:
    """Choose up to `count` held-out sentences, spread over the documents, and a word of each: the same at every call.

    The word is one piece of letters, no digits or punctuation. No sentence has more than `max_pieces`.
    """
    rng = np.random.default_rng(0)
    places = [
        (entry, index) for entry in corpus.entries("held_out") for index in range(int(entry["documents"]))
    ]
    found: dict[bytes, Gap] = {}
    # Several rounds where there are fewer documents than sentences wanted.
    for _ in range(-(-count // max(1, len(places)))):
        for place in rng.permutation(len(places)):
            entry, index = places[place]
            gap = _gap(corpus.shard(entry).document(index), tokenizer, rng, min(MAX_PIECES, max_pieces))
            if gap and len(found) < count:
                found.setdefault(gap.ids.tobytes(), gap)
    return list(found.values())


def _gap(document: Document, tokenizer: Tokenizer, rng: np.random.Generator, max_pieces: int) -> Gap | None:
    """Choose a sentence of suitable length in a document, and a word in it."""
    lengths = np.diff(document.sentences)
    for sentence in rng.permutation(np.flatnonzero((lengths >= MIN_PIECES) & (lengths <= max_pieces))):
        part = slice(document.sentences[sentence], document.sentences[sentence + 1])
        ids, continues = document.tokens[part], document.continues[part]
        alone = np.flatnonzero(~continues & ~np.append(continues[1:], False)).tolist()
        if words := [i for i in alone if _shown(tokenizer, int(ids[i])).isalpha()]:
            return Gap(ids, words[rng.integers(len(words))])
    return None


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
    logits, _ = objective.logits(collate(examples, tokenizer.pad_id, longest, packed=False).to(device))
    objective.train(was_training)
    if logits is None:
        return []
    probabilities = logits[:, : tokenizer.highest_id() + 1].float().softmax(-1).cpu()  # (N, V)
    return [_filled(gap, row, tokenizer, top_k) for gap, row in zip(chosen, probabilities, strict=True)]


def _example(gap: Gap, tokenizer: Tokenizer) -> MaskedExample:
    original = np.array([tokenizer.cls_id, *gap.ids, tokenizer.sep_id], np.int32)
    at = np.array([gap.position + 1], np.int32)
    ids = original.copy()
    ids[at] = mask_id(tokenizer)
    special = np.isin(np.arange(len(ids)), [0, len(ids) - 1])
    return MaskedExample(ids, np.zeros(len(ids), np.int8), at, original[at], special, original)


def _filled(gap: Gap, probabilities: torch.Tensor, tokenizer: Tokenizer, top_k: int) -> Filled:
    truth = int(gap.ids[gap.position])
    best = probabilities.topk(min(top_k, len(probabilities)))
    guesses = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Filled(
        text=_text(gap, tokenizer),
        truth=_shown(tokenizer, truth),
        truth_probability=float(probabilities[truth]),
        truth_rank=int((probabilities > probabilities[truth]).sum()) + 1,
        guesses=tuple((_shown(tokenizer, piece), share) for piece, share in guesses),
    )


def _shown(tokenizer: Tokenizer, piece: int) -> str:
    """Return a piece for people: BERT's as it is, others as they are written, without the space before a word."""
    name = tokenizer.id_to_token(piece)
    return name if tokenizer.has_bert_words else tokenizer.written(piece)[0].strip() or name


def _text(gap: Gap, tokenizer: Tokenizer) -> str:
    """Return a sentence with [MASK] in its gap."""
    if tokenizer.has_bert_words:
        pieces = [tokenizer.id_to_token(int(i)) for i in gap.ids]
        pieces[gap.position] = "[MASK]"
        return readable(pieces)
    ids = gap.ids.tolist()
    ids[gap.position] = mask_id(tokenizer)
    before = " " if gap.position else ""
    return (
        tokenizer.decode(ids, skip_special=False)
        .replace(tokenizer.mask_piece or "", f"{before}[MASK]")
        .strip()
    )


def readable(pieces: Sequence[str]) -> str:
    """Join pieces of BERT's tokenizer to readable text."""
    return _NO_SPACE.sub("", " ".join(pieces)).replace("##", "")
