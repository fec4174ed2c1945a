"""Unanswerable questions made by editing answerable ones, so that their own paragraph no longer answers them.

The edits follow the kinds that Rajpurkar et al. 2018 (arXiv 1806.03822, table 2) count in SQuAD 2.0: another name
of the paragraph or its article, another number of the paragraph or one near by, the opposite of a word, a negation, and
another word of the article that the paragraph does not speak of. The other words still match, so that a model has to
read what is said of them. English only: opposites, negations and the capitals of names are.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bert.data.examples import QaExample
from training.data.antonyms import ANTONYMS

_CAPITALISED = (
    r"[A-ZÀ-ÖØ-Þ]\w*(?:['’-](?!s\b)(?:\w+|(?= [A-Z])))*"  # Anna, al-Rashid, Workers' Union; Anna's is Anna
)
_NAME = re.compile(rf"{_CAPITALISED}(?:(?: (?:of|the|de|von|and))* {_CAPITALISED})*")
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-]|[.,]\d)")
_LOWER = re.compile(r"(?<![\w'’-])[a-z]{5,}(?![\w'’-])")
_TOKEN = re.compile(r"[^\W\d_]+")
_HOW = re.compile(r"\bhow\s+$", re.IGNORECASE)
_AUXILIARY = re.compile(
    r"\b(is|are|was|were|do|does|did|has|have|had|could|would|should)\b(?! not\b)", re.IGNORECASE
)
_SENTENCE_START = re.compile(r"(?:^|[.!?:][\"”')\]]*\s+|\n)[\"“'(\[]*$")
_ENDINGS = ("ing", "ed", "ly", "tion", "sion", "ment", "ity", "ous", "al", "ers", "er", "es", "s", "")


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FUNCTION_WORDS = _split("""
about above after again against among around because before being below between beyond could does doing
during either every first having their theirs there these those though through under until where which while
whose whom would should other others might shall since still than that then they this what when will with
within without called known named kinds types following besides according
""")
_FUNCTION_NAMES = _split("""
A An The In On At By For From To Of And But Or If As It Its He She They We You I His Her Their What Which
Who Whom Whose When Where Why How Is Are Was Were Do Does Did Has Have Had Can Could Would Should This That
These Those Name During After Before Since While Until Although Though However With Without Under Over
""")
EDITS_TRIED = 12
"""Draws of a kind of edit before a question is given up."""
DRAWS = 60
"""Names or words drawn before an edit is given up."""
_T = TypeVar("_T")
logger = logging.getLogger(__name__)


def edit_unanswerable(examples: Sequence[QaExample], per_answerable: float, seed: int) -> list[QaExample]:
    """Return about `per_answerable` (at most 1) edited questions for each answerable one in `examples`.

    Their ids are `ID-edited`; the same seed gives the same questions. A question that no edit fits is left out, with a
    warning where so few are left that there are not enough. No edited question equals one that is asked of the same
    paragraph. Examples without a title count as of one article. Raises ValueError when `per_answerable` is not
    between 0 and 1.
    """
    if not 0 <= per_answerable <= 1:
        raise ValueError(
            f"edited questions for each answerable one ({per_answerable}) must be between 0 and 1"
        )
    answerable = [example for example in examples if example.answers]
    rng = np.random.default_rng(seed)
    wanted = round(len(answerable) * per_answerable)
    asked = {(example.context, _fold(example.question)) for example in examples}
    words = _Articles(examples)
    made: list[QaExample] = []
    for place in rng.permutation(len(answerable)):
        if len(made) == wanted:
            break
        example = answerable[place]
        for question in _edits(example, words, rng):
            if (example.context, _fold(question)) not in asked:
                asked.add((example.context, _fold(question)))
                made.append(QaExample(f"{example.id}-edited", question, example.context, (), example.title))
                break
    if len(made) < wanted:
        logger.warning("%d of %d unanswerable questions could be made by editing", len(made), wanted)
    return made


def _fold(text: str) -> str:
    return " ".join(re.findall(r"\w+", _plain(text)))


def _plain(text: str) -> str:
    """Without case and accents: a question's Beyonce is the paragraph's Beyoncé, and no other name."""
    return "".join(c for c in unicodedata.normalize("NFD", text.casefold()) if not unicodedata.combining(c))


@dataclass(frozen=True)
class _Paragraph:
    """What a paragraph offers to put into a question."""

    names: list[str]
    numbers: list[str]
    words: frozenset[str]  # folded


class _Articles:
    """The names, numbers and words of each paragraph and of the article around it."""

    def __init__(self, examples: Sequence[QaExample]) -> None:
        self._paragraphs: dict[str, _Paragraph] = {}
        of_title: dict[str, dict[str, None]] = {}  # contexts in order, each once
        for example in examples:
            if example.context not in self._paragraphs:
                self._paragraphs[example.context] = _read(example.context)
            of_title.setdefault(example.title, {})[example.context] = None
        self._names = {t: _distinct(n for c in cs for n in self[c].names) for t, cs in of_title.items()}
        self._words = {
            title: _distinct(word for context in contexts for word in _plain_words(context))
            for title, contexts in of_title.items()
        }

    def __getitem__(self, context: str) -> _Paragraph:
        return self._paragraphs[context]

    def names(self, title: str) -> list[str]:
        return self._names[title]

    def lower_words(self, title: str) -> list[str]:
        return self._words[title]


def _distinct(items: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _read(context: str) -> _Paragraph:
    names = [m.group() for m in _names(context)]
    numbers = _NUMBER.findall(context)
    return _Paragraph(
        _distinct(iter(names)), _distinct(iter(numbers)), frozenset(_TOKEN.findall(_plain(context)))
    )


def _names(text: str) -> list[re.Match[str]]:
    """Runs of capitalised words, but for those that a sentence's start or a function word explains."""
    found = []
    for match in _NAME.finditer(text):
        single = " " not in match.group()
        if match.group().split()[0] in _FUNCTION_NAMES:
            continue
        if single and _SENTENCE_START.search(text[max(0, match.start() - 8) : match.start()]):
            continue
        found.append(match)
    return found


def _plain_words(text: str) -> list[str]:
    return [word for word in _LOWER.findall(text) if word not in _FUNCTION_WORDS]


def _edits(example: QaExample, articles: _Articles, rng: np.random.Generator) -> Iterator[str]:
    """Edited questions, kinds drawn by weight; each kind may have nothing to offer."""
    edits, weights = list(_KINDS), np.array(list(_KINDS.values()))
    for kind in rng.choice(len(edits), size=EDITS_TRIED, p=weights / weights.sum()):
        edited = edits[kind](example, articles, rng)
        if edited is not None and edited != example.question:
            yield edited


def _put(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def _pick(items: Sequence[_T], rng: np.random.Generator) -> _T | None:
    return items[int(rng.integers(len(items)))] if items else None


def _pick_where(items: Sequence[_T], fits: Callable[[_T], bool], rng: np.random.Generator) -> _T | None:
    """Draw until one fits, so that the words of a long article need not all be looked at."""
    for _ in range(DRAWS if items else 0):
        item = items[int(rng.integers(len(items)))]
        if fits(item):
            return item
    return None


def _other_name(example: QaExample, articles: _Articles, rng: np.random.Generator) -> str | None:
    old = _pick(_names(example.question), rng)
    if old is None:
        return None
    near = articles[example.context].names if rng.random() < 0.7 else articles.names(example.title)
    known = _tokens(example.question)
    new = _pick_where(near, lambda name: not known & _tokens(name), rng)
    return None if new is None else _put(example.question, old, new)


def _tokens(name: str) -> set[str]:
    return set(_TOKEN.findall(_plain(name)))


def _other_number(example: QaExample, articles: _Articles, rng: np.random.Generator) -> str | None:
    old = _pick(list(_NUMBER.finditer(example.question)), rng)
    if old is None:
        return None
    year = len(old.group()) == 4 and old.group().isdigit()
    others = [
        number
        for number in articles[example.context].numbers
        if number not in example.question and (len(number) == 4 and number.isdigit()) == year
    ]
    if others and rng.random() < 0.6:
        return _put(example.question, old, others[int(rng.integers(len(others)))])
    if not old.group().isdigit():
        return None
    value = int(old.group())
    moved = (
        value + int(rng.integers(1, 30)) * (1 if rng.random() < 0.5 else -1)
        if year
        else value * int(rng.integers(2, 5))
    )
    return _put(example.question, old, str(moved)) if moved > 0 else None


def _opposite(example: QaExample, _: _Articles, rng: np.random.Generator) -> str | None:
    fits = [m for m in _TOKEN.finditer(example.question) if m.group().casefold() in ANTONYMS]
    # "How old" and "how long" ask for a number, and "how young" for the same one.
    asked = [m for m in fits if not _HOW.search(example.question[: m.start()])]
    old = _pick(asked, rng)
    if old is None:
        return None
    new = _pick(ANTONYMS[old.group().casefold()], rng)
    if new is None:
        return None
    return _put(example.question, old, new.capitalize() if old.group()[0].isupper() else new)


def _negated(example: QaExample, _: _Articles, rng: np.random.Generator) -> str | None:
    old = _pick(list(_AUXILIARY.finditer(example.question)), rng)
    if old is None:
        return None
    form = _pick(("n't", " not", " never"), rng)
    return _put(example.question, old, f"{old.group()}{form}")


def _other_word(example: QaExample, articles: _Articles, rng: np.random.Generator) -> str | None:
    """A word that question and paragraph share gives way to one that the paragraph does not have."""
    here = articles[example.context].words
    old = _pick([m for m in _LOWER.finditer(example.question) if m.group() in here
                 and m.group() not in _FUNCTION_WORDS], rng)  # fmt: skip
    if old is None:
        return None
    ending = _ending(old.group())
    known = _tokens(example.question)
    new = _pick_where(
        articles.lower_words(example.title),
        lambda word: word not in here and word not in known and _ending(word) == ending,
        rng,
    )
    return None if new is None else _put(example.question, old, new)


def _ending(word: str) -> str:
    return next(ending for ending in _ENDINGS if word.endswith(ending))


_KINDS: dict[Callable[[QaExample, _Articles, np.random.Generator], str | None], float] = {
    _other_name: 4.0,
    _other_number: 3.0,
    _opposite: 4.0,
    _negated: 1.0,
    _other_word: 2.5,
}
"""How each kind of edit is made, and how often it is tried beside the others."""
