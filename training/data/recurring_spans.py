"""Questions made from plain text: a sentence with a gap, whose words recur elsewhere in the passage.

Recurring span selection (Ram et al. 2021, arXiv 2101.00438) in the form of SQuAD's questions (Lewis et al. 2019,
arXiv 1906.04980): a question word takes the place of a span in one sentence, and the answer is where the rest of the
passage has the same words. So a model learns to point at spans before it has seen a question that a person asked.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert.data.examples import QaExample
from training.corpus.sentences import split_sentences

PASSAGE_WORDS = (60, 160)
"""Fewest and most words of a passage."""
SENTENCE_WORDS = (6, 40)
"""Fewest and most words of the sentence around a gap, without the gap."""
SPAN_WORDS = 8
"""Most words of a span."""
COMMON, COMMON_COUNT = 250, 50
"""Words that neither begin nor end a span: how many of the most frequent ones, if they occur at least this often."""
A_PASSAGE = 4
"""Most questions of one passage."""

_WORD = re.compile(r"\w+(?:[-'’.]\w+)*")
_YEAR = re.compile(r"(1\d|20)\d\d")
_CLAUSE = re.compile(r"[,;:()]\s")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word, where it is in the passage, and in which of its sentences."""

    sentence: int
    folded: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Gap:
    """A span of one sentence, and its only other place. Characters of the passage."""

    sentence: int
    start: int
    end: int
    answer_start: int
    answer_end: int


def recurring_questions(texts: Iterable[str], limit: int | None, seed: int) -> list[QaExample]:
    """Return up to `limit` questions of whole texts, drawn from all that they give; the same seed gives the same."""
    rng = np.random.default_rng(seed)
    passages = [passage for text in texts for passage in _passages(split_sentences(text, "en"))]
    common = _common(passages)
    made: list[QaExample] = []
    for number, sentences in enumerate(passages):
        gaps = _gaps(sentences, common)
        for place in rng.permutation(len(gaps))[:A_PASSAGE]:
            question = _question(f"recurring-{number}-{place}", sentences, gaps[place], rng)
            if len(question.question.split()) >= SENTENCE_WORDS[0]:
                made.append(question)
    chosen = np.sort(rng.permutation(len(made))[:limit])
    return [made[i] for i in chosen]


def _passages(sentences: Sequence[str]) -> Iterator[list[str]]:
    """Yield runs of sentences; a last one that is too short is left out."""
    fewest, most = PASSAGE_WORDS
    gathered: list[str] = []
    words = 0
    for sentence in sentences:
        count = len(sentence.split())
        if gathered and words + count > most:
            if words >= fewest:
                yield gathered
            gathered, words = [], 0
        gathered.append(sentence)
        words += count
    if words >= fewest:
        yield gathered


def _common(passages: Sequence[Sequence[str]]) -> set[str]:
    counts = Counter(word.casefold() for passage in passages for s in passage for word in _WORD.findall(s))
    return {word for word, count in counts.most_common(COMMON) if count >= COMMON_COUNT}


def _words(sentences: Sequence[str]) -> list[_Word]:
    words: list[_Word] = []
    offset = 0
    for number, sentence in enumerate(sentences):
        words += [
            _Word(number, match.group().casefold(), offset + match.start(), offset + match.end())
            for match in _WORD.finditer(sentence)
        ]
        offset += len(sentence) + 1
    return words


def _gaps(sentences: Sequence[str], common: set[str]) -> list[_Gap]:
    """Find the longest spans that occur once in each of two sentences of a passage, and nowhere else in it."""
    passage, words = " ".join(sentences), _words(sentences)
    lengths = Counter(word.sentence for word in words)
    fewest, most = SENTENCE_WORDS
    found = []
    for span, places in _repeated(words, common).items():
        length = len(span)
        if len(places) != 2 or words[places[0]].sentence == words[places[1]].sentence:
            continue
        if length == 1 and not _may_answer(passage[words[places[0]].start : words[places[0]].end]):
            continue
        if any(_goes_on(words, places, step) for step in (-1, length)):
            continue
        for at, other in (places, places[::-1]):
            if fewest <= lengths[words[at].sentence] - length <= most:
                ends = words[at + length - 1].end, words[other + length - 1].end
                found.append(_Gap(words[at].sentence, words[at].start, ends[0], words[other].start, ends[1]))
    return found


def _repeated(words: Sequence[_Word], common: set[str]) -> dict[tuple[str, ...], list[int]]:
    """Return where each span begins, by its words; spans lie in one sentence."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    is_edge = [w.folded not in common and (len(w.folded) > 2 or w.folded.isdigit()) for w in words]
    for at, word in enumerate(words):
        for stop in range(at + 1, min(at + SPAN_WORDS, len(words)) + 1):
            if not is_edge[at] or words[stop - 1].sentence != word.sentence:
                break
            if is_edge[stop - 1]:
                places[tuple(each.folded for each in words[at:stop])].append(at)
    return places


def _may_answer(word: str) -> bool:
    """Tell whether one word alone may be an answer: a name, a number, or a long word."""
    return word[0].isupper() or any(c.isdigit() for c in word) or len(word) > 6


def _goes_on(words: Sequence[_Word], places: Sequence[int], step: int) -> bool:
    """Tell whether both places have the same word `step` words on, so that a longer span recurs."""
    one, other = (at + step for at in places)
    if min(one, other) < 0 or max(one, other) >= len(words):
        return False
    inside = all(words[at].sentence == words[at + step].sentence for at in places)
    return inside and words[one].folded == words[other].folded


def _question(name: str, sentences: Sequence[str], gap: _Gap, rng: np.random.Generator) -> QaExample:
    before = sum(len(sentence) + 1 for sentence in sentences[: gap.sentence])
    sentence = sentences[gap.sentence]
    answer = sentence[gap.start - before : gap.end - before]
    left, right = sentence[: gap.start - before], sentence[gap.end - before :]
    if rng.random() < 0.4:  # the clause around the gap alone
        left, right = _CLAUSE.split(left)[-1], _CLAUSE.split(right)[0]
    asked = _question_word(answer, rng)
    comes_first = rng.random() < 0.5
    words = f"{asked} {left} {right}" if comes_first else f"{left}{asked}{right}"
    question = " ".join(words.split()).rstrip(" .,;:") + "?"
    context = " ".join(s for number, s in enumerate(sentences) if number != gap.sentence)
    shift = len(sentence) + 1 if gap.answer_start > before else 0
    start, end = gap.answer_start - shift, gap.answer_end - shift
    return QaExample(name, question, context, ((context[start:end], start),), name)


def _question_word(answer: str, rng: np.random.Generator) -> str:
    """Draw a word that may ask for the answer, by its first letter and digits."""
    if _YEAR.search(answer):
        return str(rng.choice(["when", "what year"]))
    if any(c.isdigit() for c in answer):
        return str(rng.choice(["how many", "what number"]))
    if answer[0].isupper():
        return str(rng.choice(["who", "what", "which", "where"], p=[0.35, 0.35, 0.15, 0.15]))
    return str(rng.choice(["what", "which", "how"], p=[0.7, 0.2, 0.1]))
