"""Choose short labelled texts that `task.json` keeps as requests to try the model with."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bert.data.examples import ChoiceExample, EntitiesExample, QaExample, TextExample, WordsExample

MAX_CHARACTERS = 300
"""Length of the longest text kept; a longer one fills the page's field."""
MAX_CONTEXT_CHARACTERS = 1000
CANDIDATES = 4
"""Texts that a similarity model is asked to compare."""


def model_examples(examples: Sequence[Any], count: int, *, embeds: bool) -> tuple[dict[str, Any], ...]:
    """Return up to `count` requests made of held-out examples, from as many labels as there are."""
    short = [example for example in examples if _is_short(example)]
    if embeds:
        return _comparisons(short, count)
    by_kind = defaultdict[object, list[dict[str, Any]]](list)
    for example in short:
        kind, body = _request(example)
        if body not in by_kind[kind]:
            by_kind[kind].append(body)
    # Sentences without an entity, which show nothing, come last.
    lists = [by_kind[kind] for kind in sorted(by_kind, key=lambda kind: kind == frozenset())]
    rounds = range(max(map(len, lists), default=0))
    return tuple(bodies[place] for place in rounds for bodies in lists if place < len(bodies))[:count]


def _comparisons(pairs: Sequence[TextExample], count: int) -> tuple[dict[str, Any], ...]:
    """Return texts to compare with their own second texts and those of others, the likest pairs first."""
    likest = sorted(
        (pair for pair in pairs if pair.text_pair),
        key=lambda pair: -pair.label if isinstance(pair.label, float) else 0.0,
    )
    found = list[dict[str, Any]]()
    for first in range(min(count, len(likest) - CANDIDATES + 1)):
        others = [str(pair.text_pair) for pair in likest[first : first + CANDIDATES]]
        found.append({"text": likest[first].text, "candidates": sorted(others)})
    return tuple(found)


def _is_short(example: Any) -> bool:
    if isinstance(example, EntitiesExample) and not example.entities:
        return False  # there are no labels to ask for
    limit = MAX_CONTEXT_CHARACTERS if isinstance(example, QaExample) else MAX_CHARACTERS
    return 0 < sum(map(len, _texts(example))) <= limit


def _texts(example: Any) -> Iterable[str]:
    match example:
        case TextExample():
            return example.text, example.text_pair or ""
        case WordsExample():
            return example.words
        case EntitiesExample():
            return (example.text,)
        case QaExample():
            return example.question, example.context
        case ChoiceExample():
            return example.prompt, *example.choices
    raise TypeError(example)


def _request(example: Any) -> tuple[object, dict[str, Any]]:
    """Return what tells an example from others, and the request made of it."""
    match example:
        case TextExample():
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            return example.label, {"text": example.text} | pair
        case WordsExample():
            return frozenset(example.labels) - {"O"}, {"text": " ".join(example.words)}
        case EntitiesExample():
            labels = list(dict.fromkeys(label for _, _, label in example.entities))
            return frozenset(labels), {"text": example.text, "labels": labels}
        case QaExample():
            return bool(example.answers), {"question": example.question, "context": example.context}
        case ChoiceExample():
            return None, {"prompt": example.prompt, "choices": list(example.choices)}
    raise TypeError(example)
