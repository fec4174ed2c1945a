"""SQuAD json, versions 1.1 and 2.0, and the sets that copy the format (SquadShifts, CMRC 2018, ...)."""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bert.data.examples import QaExample
from bert.data.files import NOT_UNICODE, Problems, ending, holds_unicode, json_lines, parse_json, read_text
from bert.errors import DataError

logger = logging.getLogger(__name__)
Question = tuple[str, str, dict[str, Any]]
"""Title, context, and the question's object as SQuAD has it."""

MEND_REACH = 50
"""Largest distance, in code points, of an answer that occurs several times from its `answer_start`."""

MAX_DROPPED_SHARE = 0.1
"""A file that loses more of its questions than this is broken, and refused."""


@dataclass
class _Count:
    mended: int = 0
    left_out: int = 0  # answers, not questions
    dropped: list[tuple[str, str]] = field(default_factory=list)  # question id, reason


def read_squad(path: str | Path) -> list[QaExample]:
    """Read one SQuAD json file, or json lines of questions, each with its `context`; their order is kept.

    An answer that does not stand at its `answer_start` is mended when it stands nearby, or at just one other
    place, and is otherwise left out; a question that so loses every answer is dropped. Both are counted in a
    log warning. An empty list of answers, or `is_impossible`, means that the paragraph has no answer.

    Raises DataError when the file is not such json, misses a field, repeats an id, or when more than
    MAX_DROPPED_SHARE of its questions would be dropped.
    """
    problems = Problems(path)
    if ending(path) in (".jsonl", ".ndjson"):
        return squad_examples(_lines(path, problems), problems, lambda _: None)
    text = read_text(path)
    content = parse_json(text, path)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise DataError(path, None, 'is not SQuAD json: it must be an object with a list "data" of articles')
    return squad_examples(_questions(content["data"], problems), problems, partial(_line_of_id, text))


def squad_examples(
    questions: Iterable[Question], problems: Problems, line_of_id: Callable[[str], int | None]
) -> list[QaExample]:
    """Check and mend questions as `read_squad` does, wherever they came from. Raises DataError likewise."""
    examples, count = [], _Count()
    for title, context, question in questions:
        example = _example(title, context, question, problems, count)
        if example is not None:
            examples.append(example)
    for question_id, times in Counter(example.id for example in examples).items():
        if times > 1:
            problems.add(line_of_id(question_id), f"question id {question_id} occurs twice")
    if len(count.dropped) > MAX_DROPPED_SHARE * (len(examples) + len(count.dropped)):
        for question_id, reason in count.dropped:
            problems.add(line_of_id(question_id), f"question {question_id}: {reason}")
    if not examples and not len(problems):
        problems.add(None, "has no questions")
    problems.raise_if_any()
    _warn(problems.path, count)
    return examples


def _warn(path: str | Path, count: _Count) -> None:
    if count.mended or count.left_out:
        logger.warning(
            "%s: %d answers with a wrong answer_start were mended; %d that stand nowhere were left out",
            path,
            count.mended,
            count.left_out,
        )
    if count.dropped:
        first, reason = count.dropped[0]
        number = len(count.dropped)
        logger.warning("%s: %d questions were dropped, the first is %s: %s", path, number, first, reason)


def _lines(path: str | Path, problems: Problems) -> Iterator[Question]:
    """Read questions from json lines; what has the wrong shape goes to `problems`."""
    for line, row in json_lines(path, problems):
        found = row if isinstance(row, dict) else {}
        context, name = found.get("context"), found.get("id")
        if not isinstance(context, str) or not context.strip():
            problems.add(line, 'has no text "context"')
        elif not isinstance(name, str | int):
            problems.add(line, 'has no "id"')
        elif not holds_unicode([context, name]):
            problems.add(line, f'"context" or "id" {NOT_UNICODE}')
        else:
            yield "", context, found


def _questions(articles: list[Any], problems: Problems) -> Iterator[Question]:
    """Walk articles and paragraphs, noting what has the wrong shape or is not valid Unicode."""
    for a, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            problems.add(None, f'data[{a}] has no list "paragraphs"')
            continue
        title = str(article.get("title") or "")
        if not holds_unicode(title):
            problems.add(None, f'"title" of data[{a}] {NOT_UNICODE}')
        for p, paragraph in enumerate(paragraphs):
            where = f"data[{a}].paragraphs[{p}]"
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str) or not context.strip():
                problems.add(None, f'{where} has no text "context"')
            elif not holds_unicode(context):
                problems.add(None, f'"context" of {where} {NOT_UNICODE}')
            elif not isinstance(paragraph.get("qas"), list):
                problems.add(None, f'{where} has no list "qas"')
            else:
                for q, question in enumerate(paragraph["qas"]):
                    if not isinstance(question, dict) or not isinstance(question.get("id"), str | int):
                        problems.add(None, f'{where}.qas[{q}] has no "id"')
                    elif not holds_unicode(question["id"]):
                        problems.add(None, f'"id" of {where}.qas[{q}] {NOT_UNICODE}')
                    else:
                        yield title, context, question


def _example(
    title: str, context: str, question: dict[str, Any], problems: Problems, count: _Count
) -> QaExample | None:
    question_id, text = str(question["id"]), question.get("question")
    if not isinstance(text, str) or not text.strip():
        count.dropped.append((question_id, "the question is empty"))
        return None
    if not holds_unicode(text):
        problems.add(None, f"question {question_id}: its text {NOT_UNICODE}")
        return None
    given = question.get("answers", [])
    if not isinstance(given, list) or not all(_is_answer(answer) for answer in given):
        problems.add(None, f'question {question_id}: "answers" must be a list of {{"text", "answer_start"}}')
        return None
    if question.get("is_impossible"):
        given = []
    answers = tuple(_placed(context, answer["text"], answer["answer_start"], count) for answer in given)
    found = tuple(answer for answer in answers if answer is not None)
    count.left_out += len(answers) - len(found)
    if given and not found:
        count.dropped.append((question_id, f"the answer {given[0]['text'][:60]!r} is not in its context"))
        return None
    return QaExample(question_id, text, context, found, title)


def _is_answer(answer: object) -> bool:
    if not isinstance(answer, dict):
        return False
    return isinstance(answer.get("text"), str) and type(answer.get("answer_start")) is int


def _placed(context: str, text: str, start: int, count: _Count) -> tuple[str, int] | None:
    """Return the answer where it really stands in the context, or None."""
    if not text.strip():
        return None
    if start >= 0 and context[start : start + len(text)] == text:
        return text, start
    places = [found.start() for found in re.finditer(f"(?={re.escape(text)})", context)]
    if not places:
        return None
    nearest = min(places, key=lambda place: abs(place - start))
    if len(places) > 1 and abs(nearest - start) > MEND_REACH:
        return None
    count.mended += 1
    return text, nearest


def _line_of_id(text: str, question_id: str) -> int | None:
    place = text.find(json.dumps(question_id, ensure_ascii=False))
    return text.count("\n", 0, place) + 1 if place >= 0 else None
