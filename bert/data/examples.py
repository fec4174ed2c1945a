"""Labelled examples, one frozen class for each kind of task; nothing is tokenised yet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or a pair with its label: classification, regression, multi-label, similarity.

    `label` is a name (one of several classes), a float (regression, similarity), a tuple of names
    (multi-label; may be empty) or None (an unlabelled text, or two that belong together).
    """

    text: str
    text_pair: str | None
    label: str | float | tuple[str, ...] | None
    id: str
    negatives: tuple[str, ...] | None = None
    """Texts that do not belong to `text`, as `text_pair` does (similarity). None: the label says how alike two are."""


@dataclass(frozen=True, slots=True)
class WordsExample:
    """One sentence as words, with one BIO label a word."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    id: str


@dataclass(frozen=True, slots=True)
class QaExample:
    """One question about one paragraph.

    `answers` are (text, start) with `context[start:start + len(text)] == text`, in code points; empty means
    that the paragraph has no answer. `title` names the article, and is empty where the data has none.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    title: str


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A prompt and its possible endings; `label` is the index of the right one."""

    prompt: str
    choices: tuple[str, ...]
    label: int
    id: str
