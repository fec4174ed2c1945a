"""Logits of words to entities with exact character positions. T tokens, P heads, W words, K labels.

A word is what lies between spaces and punctuation (`Pieces.word_ids`), whatever the tokenizer; its first piece, the head,
speaks for it. `bert.tasks.aggregation` has the other ways.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Pieces, Window
from bert.tasks.spec import TaskSpec
from bert.tasks.tags import PUNCTUATION, SYMBOLS, TagScheme, has_symbols, without_symbols, without_tags
from bert.tasks.task import Floats, Head, Positions, Task, softmax
from bert.text.offsets import extend_over_marks, join_words, word_starts

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Entity:
    """A stretch of the text: `text` is the original's [start:end], in code points."""

    text: str
    label: str
    start: int
    end: int
    score: float
    """Mean over the words, or pieces, of the probability of the label chosen."""


def head_positions(encoding: Encoding) -> Indices:
    """Return the positions (P,) of the first piece of each word among the encoding's tokens.

    A window that begins inside a word gives that word a head too; `merge_windows` prefers the true one.
    """
    return _heads(encoding.word_ids)


def merge_windows(windows: Sequence[Window], logits: Sequence[Floats]) -> Floats:
    """Return one row of logits for each word, (W, K), from each window's (P_i, K) at its `head_positions`.

    Each word's row comes from the window that gives its head the most context.
    """
    if len(windows) != len(logits) or not windows:
        raise ValueError(f"{len(windows)} windows but {len(logits)} arrays of logits; at least one is needed")
    if len(windows) == 1:
        return logits[0]
    words = 1 + max(int(window.encoding.word_ids.max()) for window in windows)
    most = np.full(words, -1.0)
    merged: Floats = np.zeros((words, logits[0].shape[1]), logits[0].dtype)
    for window, rows in zip(windows, logits, strict=True):
        heads = head_positions(window.encoding)
        here, word = window.context()[heads - window.first_token], window.encoding.word_ids[heads]
        better = here > most[word]
        most[word[better]], merged[word[better]] = here[better], rows[better]
    return merged[most >= 0.0]


def decode(
    text: str, pieces: Pieces, logits: Floats, spec: TaskSpec, left_out: Collection[str] = ()
) -> list[Entity]:
    """Turn the words' logits (W, K) into entities in the order of the text.

    The labels are K tags of any scheme (`bert.tasks.tags`), which the model's words may break. As conlleval and seqeval's
    default read them, an I- tag after O or another type begins an entity. Words of the kinds in `left_out` belong to none,
    beside those that the spec leaves out. Raises ValueError if the logits do not fit.
    """
    tags = word_tags(text, pieces, logits, spec, left_out)
    scheme = TagScheme.of(spec.labels)
    if not (scheme.kind_of[tags] >= 0).any():
        return []
    scores = np.take_along_axis(softmax(logits), tags[:, None], axis=-1)[:, 0]
    found = joined(text, scheme, tags, scores, word_bounds(pieces, word_heads(pieces)))
    return trimmed(text, found, {*spec.left_out, *left_out})


def word_tags(
    text: str, pieces: Pieces, logits: Floats, spec: TaskSpec, left_out: Collection[str] = ()
) -> Indices:
    """Choose each word's tag (W,), a number of the spec's labels, by the words' logits (W, K).

    Raises ValueError if the logits do not fit.
    """
    heads = word_heads(pieces)
    if logits.shape != (len(heads), len(spec.labels)):
        raise ValueError(f"logits have shape {logits.shape}; {(len(heads), len(spec.labels))} is needed")
    scheme, kinds = TagScheme.of(spec.labels), {*spec.left_out, *left_out}
    if kinds and len(heads):
        logits = without_tags(text, word_bounds(pieces, heads), logits, scheme, kinds)
    if spec.viterbi and len(logits):
        return scheme.best_sequence(logits)
    tags: Indices = logits.argmax(axis=-1)
    return tags


def trimmed(text: str, entities: Sequence[Entity], left_out: Collection[str]) -> list[Entity]:
    """Drop entities of punctuation alone, and take symbols that are written together with a word, as in "Siemens™", off
    the ends of entities: each where its kind is left out.
    """
    if PUNCTUATION in left_out:
        entities = [entity for entity in entities if any(map(str.isalnum, entity.text))]
    if SYMBOLS not in left_out or not has_symbols(text):
        return list(entities)
    cut = [(entity, *without_symbols(text, entity.start, entity.end)) for entity in entities]
    return [
        replace(entity, text=text[start:end], start=start, end=end)
        for entity, start, end in cut
        if start < end
    ]


def joined(
    text: str, scheme: TagScheme, tags: Indices, scores: Floats, bounds: NDArray[np.integer]
) -> list[Entity]:
    """Join neighbouring words, or pieces, of one entity: their tags (W,), scores (W,), and starts and ends (W, 2)."""
    first, last = scheme.bounds(tags)
    if not len(first):
        return []
    sums = np.concatenate([[0.0], scores.cumsum(dtype=np.float64)])
    means = (sums[last] - sums[first]) / (last - first)
    kinds = [scheme.kind(tag) for tag in tags[first].tolist()]
    spans = np.stack([bounds[first, 0], bounds[last - 1, 1]], axis=1)
    extend_over_marks(text, spans)
    columns = zip(kinds, spans[:, 0].tolist(), spans[:, 1].tolist(), means.tolist(), strict=True)
    return [Entity(text[start:end], kind, start, end, score) for kind, start, end, score in columns]


def word_bounds(pieces: Pieces, heads: Indices) -> NDArray[np.int32]:
    """Return where each word starts and ends, (W, 2), from its pieces.

    Blanks after a word are none of its pieces. A piece of bytes may hold half of the next word's first character.
    """
    if not len(heads):
        return np.empty((0, 2), np.int32)
    ends = np.maximum.accumulate(np.where(pieces.word_ids < 0, 0, pieces.offsets[:, 1]))
    starts = pieces.offsets[heads, 0]
    last_pieces = np.append(heads[1:], len(pieces)) - 1
    limits = np.append(starts[1:], ends[-1])
    return np.stack([starts, np.minimum(ends[last_pieces], limits)], axis=1)


def word_targets(words: Sequence[str], tags: Sequence[str], pieces: Pieces, labels: Sequence[str]) -> Indices:
    """Return the label id of each word of `pieces`, (W,), for a sentence tagged in its own words (CoNLL).

    `pieces` are those of `join_words(words)`. Where a given word is several of ours ("U.S." is four), they go on
    with its type: the served model meets such words too, and has to know what to say of each part.
    Raises ValueError for a tag, or the I- tag of its type, that is not among the labels.
    """
    index = {label: number for number, label in enumerate(labels)}
    later = [f"I-{tag[2:]}" if tag[:2] == "B-" else tag for tag in tags]
    if unknown := [tag for tag in (*tags, *later) if tag not in index]:
        raise ValueError(f"tag {unknown[0]!r} is not among the labels {', '.join(labels)}")
    begins, goes_on = [index[tag] for tag in tags], [index[tag] for tag in later]
    owner = _owners(words, pieces.offsets[word_heads(pieces), 0])
    is_first = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    return np.where(is_first, np.array(begins, np.intp)[owner], np.array(goes_on, np.intp)[owner])


def tags_of(
    words: Sequence[str], pieces: Pieces, windows: Sequence[Window], logits: Sequence[Floats], spec: TaskSpec
) -> list[str]:
    """Return a BIO tag for each given word, from each window's logits at its heads; `pieces` are of `join_words(words)`."""
    tags = word_tags(join_words(words), pieces, merge_windows(windows, logits), spec)
    return given_tags(words, pieces, tags, spec.labels)


def given_tags(
    words: Sequence[str], pieces: Pieces, tags: NDArray[np.integer], labels: Sequence[str]
) -> list[str]:
    """Return a BIO tag for each given word, by its first part's of tags (W,) of ours; "O" where it has none.

    A word inside a piece that begins in the word before, as 京 in the piece 北京, goes on with that word's tag.
    """
    found, goes_on = np.full(len(words), -1), np.zeros(len(words), np.bool_)
    bounds = word_bounds(pieces, word_heads(pieces))
    firsts = _owners(words, bounds[:, 0])
    lasts = _owners(words, np.maximum(bounds[:, 0], bounds[:, 1] - 1))
    for first, last, tag in zip(
        firsts[::-1], lasts[::-1], tags[::-1], strict=True
    ):  # a word's first part comes last
        found[first : last + 1], goes_on[first] = tag, False
        goes_on[first + 1 : last + 1] = True
    bio = TagScheme.of(labels).bio(found)
    return [
        f"I-{tag[2:]}" if inside and tag != "O" else tag for tag, inside in zip(bio, goes_on, strict=True)
    ]


def _owners(words: Sequence[str], places: NDArray[np.int32]) -> Indices:
    """Return the given word at each code point (W,) of `join_words(words)`."""
    owners: Indices = np.searchsorted(word_starts(words), places, side="right") - 1
    return owners


def word_heads(pieces: Pieces) -> Indices:
    """Return the first piece of each word, (W,)."""
    return _heads(pieces.word_ids)


def _heads(word_ids: NDArray[np.int32]) -> Indices:
    """Return where a word begins; -1 marks pieces of no word."""
    is_head = word_ids >= 0
    is_head[1:] &= word_ids[1:] != word_ids[:-1]
    return np.flatnonzero(is_head)


class NerTask(Task):
    """A tag for each word."""

    name = "ner"
    head = Head.LINEAR
    architectures = ("BertForTokenClassification",)
    needs_labels = True
    has_tags = True
    has_windows = True
    reads_words = True
    kept_share = 0.995  # most words have no entity

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the positions of the first piece of each word."""
        return head_positions(encoding)
