"""Scores of spans, or of words, to entities: which of those over a threshold stand beside one another."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bert.encoding import Ints, Window
from bert.errors import InputError
from bert.tasks.ner import Entity
from bert.tasks.spec import LabelPrompt
from bert.tasks.task import Floats, sigmoid

FLOOR = 0.01
"""Probabilities below it do not leave the engine, so that no request can ask for them."""
MAX_FOUND = 2**18
"""Most spans of a text and their labels that are weighed against one another, in about a second."""
START, END, INSIDE = range(3)
"""Columns of the scores of a model that judges words."""
_Found = tuple[int, int, int]
"""First word, last word and label of an entity."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """Options of a request: the threshold, and which entities may stand beside one another."""

    threshold: float = 0.5
    """Probability that an entity must exceed, at least FLOOR."""
    flat: bool = True
    """No two entities overlap; else one may lie within another."""
    multi_label: bool = False
    """The same words may be entities of several labels."""
    join: bool = False
    """Neighbouring entities of one label, with nothing or blanks between them, are one."""


def candidates(logits: Floats) -> Floats:
    """Return row, column and logit (M, 3) of all logits (W * C, K) over FLOOR; float32 holds rows up to 2 ** 24."""
    places = np.flatnonzero(logits > np.log(FLOOR / (1 - FLOOR)))  # a sixth of the time of rows and columns
    rows, columns = np.divmod(places, logits.shape[1])
    found: Floats = np.stack([rows, columns, logits.ravel()[places]], axis=1).astype(np.float32)
    return found


def decode(
    text: str,
    bounds: Ints,
    labels: Sequence[str],
    windows: Sequence[Window],
    found: Sequence[Floats],
    prompt: LabelPrompt,
    how: Choosing,
) -> list[Entity]:
    """Return the entities of a text, in its order, by the `candidates` of each of its windows.

    `bounds` (W, 2) are those of its words. As in `gliner`, the most probable ones come first, then those that they leave
    room for; of equal ones the first in the text, then the narrower, then that of the first label.

    Raises InputError for a text with more than MAX_FOUND of them.
    """
    scores: dict[_Found, float] = {}
    of_window = _spans if prompt.judges_spans else _runs
    for window, rows in zip(windows, found, strict=True):
        for (first, last, label), score in of_window(rows, len(labels), how.threshold):
            key = first + window.start, last + window.start, label
            scores[key] = max(scores.get(key, 0.0), score)
            if len(scores) > MAX_FOUND:
                raise InputError(
                    f"has over {MAX_FOUND} candidates above the threshold of {how.threshold}: raise it, or send shorter "
                    "texts or fewer labels"
                )
    best_first = sorted(sorted(scores), key=lambda key: -scores[key])
    entities = []
    for first, last, label in sorted(_chosen(best_first, len(bounds), how), key=lambda key: key[0]):
        start, end = int(bounds[first, 0]), int(bounds[last, 1])
        entities.append(Entity(text[start:end], labels[label], start, end, scores[first, last, label]))
    return _joined(text, entities) if how.join else entities


def _spans(rows: Floats, labels: int, threshold: float) -> Iterator[tuple[_Found, float]]:
    """Yield the spans over the threshold; a column is one less than the words of a span."""
    scores = sigmoid(rows[:, 2])
    over = scores.astype(np.float64) > threshold
    places, columns = rows[over, 0].astype(np.int64), rows[over, 1].astype(np.int64)
    for place, column, score in zip(places.tolist(), columns.tolist(), scores[over].tolist(), strict=True):
        word, label = divmod(place, labels)
        yield (word, word + column, label), score


def _runs(rows: Floats, labels: int, threshold: float) -> Iterator[tuple[_Found, float]]:
    """Yield the words from a start to an end of its label with nothing but insides between; the least score counts."""
    of_column: dict[int, dict[int, float]] = defaultdict(dict)
    scores = sigmoid(rows[:, 2]).tolist()
    for (place, column), score in zip(rows[:, :2].astype(np.int64).tolist(), scores, strict=True):
        of_column[column][place] = score
    inside, ends = of_column[INSIDE], of_column[END]
    for start, score in of_column[START].items():
        place, least = start, score
        while score > threshold and (within := inside.get(place, 0.0)) >= threshold:
            least = min(least, within)
            if (end := ends.get(place, 0.0)) > threshold:
                yield (start // labels, place // labels, start % labels), min(least, end)
            place += labels


def _chosen(best_first: Sequence[_Found], words: int, how: Choosing) -> Iterator[_Found]:
    """Yield those that stand beside all that came before, of a text of so many words.

    Each span is looked at once, whatever its labels, and then not beside every other one: those may be very many.
    """
    fits = dict[tuple[int, int], bool]()
    is_taken, first_of, last_of = np.zeros(words, bool), np.full(words, words), np.full(words, -1)
    for found in best_first:
        first, last, _ = found
        if (first, last) in fits:
            if fits[first, last] and how.multi_label:
                yield found
            continue
        if how.flat:
            fits[first, last] = not is_taken[first : last + 1].any()
        else:  # no other one begins before it and ends inside, or begins inside and ends behind it
            ends_inside = (first_of[first:last] < first).any()
            fits[first, last] = not (ends_inside or (last_of[first + 1 : last + 1] > last).any())
        if fits[first, last]:
            is_taken[first : last + 1] = True
            first_of[last], last_of[first] = min(first_of[last], first), max(last_of[first], last)
            yield found


def _joined(text: str, entities: Sequence[Entity]) -> list[Entity]:
    """Join neighbours of one label; the score is the lower one."""
    found = list[Entity]()
    for entity in entities:
        last = found[-1] if found else None
        if last is None or last.label != entity.label or text[last.end : entity.start].strip():
            found.append(entity)
        elif entity.end > last.end:
            joined = text[last.start : entity.end]
            score = min(last.score, entity.score)
            found[-1] = replace(last, text=joined, end=entity.end, score=score)
    return found
