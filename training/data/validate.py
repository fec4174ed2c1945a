"""Checks of all examples together, and of train against dev, before training starts."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.errors import DataError
from training.data.summary import label_counts

logger = logging.getLogger(__name__)
Example = TextExample | WordsExample | QaExample | ChoiceExample


def class_labels(examples: Iterable[TextExample]) -> tuple[str, ...]:
    """Return every class that occurs, numbers by value and names by alphabet: the order of the labels."""
    found = label_counts(examples)
    return tuple(sorted(found, key=int if all(label.isdecimal() for label in found) else None))


def validate_training(path: str | Path, examples: Sequence[Example]) -> None:
    """Refuse examples from which nothing can be learned.

    Raises DataError: no examples, unlabelled ones, one class or score only, no entity, nothing answerable.
    """
    if not examples:
        raise DataError(path, None, "has no examples")
    reason = _fault([e for e in examples if isinstance(e, TextExample)])
    words = [example for example in examples if isinstance(example, WordsExample)]
    if words and not any(set(example.labels) - {"O"} for example in words):
        reason = "has no entity to learn: every label is O"
    questions = [example for example in examples if isinstance(example, QaExample)]
    if questions and not any(example.answers for example in questions):
        reason = "has no answerable question"
    if reason is not None:
        raise DataError(path, None, reason)


def _fault(examples: Sequence[TextExample]) -> str | None:
    examples = [example for example in examples if example.negatives is None]
    if not examples:
        return None
    unlabelled = sum(example.label is None for example in examples)
    if unlabelled:
        return f"has {unlabelled} examples without a label, of {len(examples)}"
    if all(isinstance(example.label, tuple) for example in examples):
        return None if class_labels(examples) else "has no label on any example"
    different = {example.label for example in examples}
    if len(different) == 1:
        return f"has one label only, {examples[0].label!r}: there is nothing to learn"
    return None


def shared_with_training(training: Iterable[Example], dev: Iterable[Example]) -> int:
    """Count the dev examples whose whole input is also in training: a score on them means little."""
    seen = Counter(_input(example) for example in training)
    shared = sum(_input(example) in seen for example in dev)
    if shared:
        logger.warning("%d dev examples are also in the training data; the dev score is too good", shared)
    return shared


def _input(example: Example) -> tuple[object, ...]:
    match example:
        case TextExample():
            return example.text, example.text_pair
        case WordsExample():
            return example.words
        case QaExample():
            return example.question, example.context
        case ChoiceExample():
            return example.prompt, example.choices
