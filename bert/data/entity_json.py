"""Entities in json, to words with BIO labels: character spans as annotation tools write them, or words and tags.

    {"text": "Anna sang", "label": [[0, 4, "PER"]]}                           Doccano, spaCy
    {"text": ..., "entities": [{"label": "PER", "start_offset": 0, "end_offset": 4}]}    Doccano with relations
    {"text": ..., "spans": [{"start": 0, "end": 4, "label": "PER"}]}          Prodigy, spaCy
    ["Anna sang", {"entities": [[0, 4, "PER"]]}]                              spaCy
    {"data": {"text": ...}, "annotations": [{"result": [...]}]}               Label Studio
    {"tokens": ["Anna", "sang"], "ner_tags": ["B-PER", "O"]}                  Hugging Face

One object a line, or a json list of them. Offsets count code points.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert.data.examples import LabelledFile, WordsExample
from bert.data.files import (
    NOT_UNICODE,
    Place,
    Problems,
    ending,
    holds_unicode,
    json_lines,
    opened,
    parse_json,
    read_lines,
    read_text,
)
from bert.data.spans import LabelledSpan, SpannedWords, read_span
from bert.data.tagged_words import UnnamedTagsError, check_known, is_tagged_word, tagged_words
from bert.errors import DataError
from bert.text.offsets import word_bounds

logger = logging.getLogger(__name__)
SpannedText = tuple[Place, str, list[LabelledSpan]]
MAX_MOVED_SHARE = 0.5
"""A file of which more spans begin or end inside a word counts something else than code points, and is refused."""
ENDINGS = (".json", ".jsonl", ".ndjson")
_SPANS = ("spans", "entities", "ents", "label", "labels")
_TAGS = ("ner_tags", "tags", "labels")
_REJECTED = ("reject", "ignore")  # Prodigy's answers


def holds_json(path: Path) -> bool:
    """Tell json from columns of words and tags, by how the file begins. What cannot be read is told by its ending."""
    try:
        with opened(path) as (stream, _):
            start = stream.read(1 << 16).decode("utf-8-sig", errors="replace").lstrip()
    except OSError:
        return ending(path) in ENDINGS
    return start[:1] in ("{", "[") and not is_tagged_word(start.partition("\n")[0])


def read_entity_json(file: LabelledFile, labels: Sequence[str] | None = None) -> list[WordsExample]:
    """Read texts with spans, or words with tags; an id is the line, of a json list the row.

    Words of a text are those of BERT's tokenizer, between spaces and punctuation. Blanks at the ends of a span are left
    out. A span that begins or ends inside a word is moved to the word's edges. Both are counted in a warning. Spans that
    overlap, lie outside of the text or hold no word are problems, and so is any BIO label but the `labels`, if given.
    Raises DataError with all of them, and where most spans had to be moved.
    """
    return EntityReader(file, labels).read()


class EntityReader:
    """Reads one file; a subclass makes other examples of its rows."""

    def __init__(self, file: LabelledFile, labels: Sequence[str] | None = None) -> None:
        """Take a file; with `labels`, any other BIO label is a problem."""
        self.file, self.labels = file, labels
        self.path, self.problems = file.path, Problems(file.path)
        self.words_field = file.columns.get("words", "tokens")
        self.count: Counter[str] = Counter()
        self.moved: list[str] = []

    def read(self) -> list[Any]:
        """Return the examples. Raises DataError as `read_entity_json` does."""
        rows = [found for place, row in self._rows() for found in self._row(place, row)]
        bounds = iter(self._bounds([found[1] for found in rows if isinstance(found, tuple)]))
        examples = [
            self._aligned(found[0], found[1], found[2], next(bounds)) if isinstance(found, tuple) else found
            for found in rows
        ]
        if not examples and not len(self.problems):
            self.problems.add(None, "has no annotated texts")
        self.problems.raise_if_any()
        self._tell()
        return [example for example in examples if example.words]

    def _rows(self) -> Iterator[tuple[Place, Any]]:
        """Yield place and value of each row, of json lines or of one json list."""
        if _is_json_lines(next(line for line in read_lines(self.path) if line.strip())):
            yield from json_lines(self.path, self.problems)
            return
        content = parse_json(read_text(self.path), self.path)
        rows = content if isinstance(content, list) and not _is_row(content) else [content]
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))

    def _bounds(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return word_bounds(texts)

    def _row(self, place: Place, row: Any) -> Iterator[Any]:
        """Yield the row's example: finished where it has words, else as place, text and spans. A fault is noted."""
        try:
            if isinstance(row, list) and _is_row(row):
                row = {"text": row[0], **row[1]}
            if not isinstance(row, dict):
                raise ValueError(f"is {str(row)[:60]!r} instead of an object")
            if not holds_unicode(list(row.values())):
                raise ValueError(NOT_UNICODE)
            if row.get("answer") in _REJECTED:
                self.count["rejected"] += 1
            elif "annotations" in row and isinstance(row.get("data"), dict):
                yield from self._task(place, row)
            elif self._has_words(row):
                yield self._tagged(place, row)
            else:
                yield from self._text(place, row, row, self._spans(row))
        except UnnamedTagsError as error:  # of one row as of all
            raise DataError(self.path, None, str(error)) from None
        except ValueError as error:
            self.problems.add(place, str(error))

    def _has_words(self, row: Mapping[str, Any]) -> bool:
        words = row.get(self.words_field)
        return isinstance(words, list) and not any(isinstance(word, dict) for word in words)

    def _tagged(self, place: Place, row: Mapping[str, Any]) -> Any:
        name = self.file.columns.get("tags") or next((name for name in _TAGS if name in row), _TAGS[0])
        words, tags = row[self.words_field], row.get(name)
        if not isinstance(tags, list):
            raise ValueError(f"has {self.words_field!r} and no list {name!r} of a tag for each")
        return tagged_words(
            words,
            tags,
            place,
            columns=(self.words_field, name),
            names=self.file.label_names,
            label_map=self.file.label_map,
            labels=self.labels,
        )

    def _spans(self, row: Mapping[str, Any]) -> Any:
        name = self.file.columns.get("spans") or next((name for name in _SPANS if name in row), None)
        if name is None or name not in row:
            known = ", ".join(map(repr, _SPANS if name is None else [name]))
            raise ValueError(
                f"has none of the fields {known} with spans, nor {self.words_field!r} with tags; "
                f"its fields are {', '.join(map(repr, row)) or 'none'}"
            )
        return row[name]

    def _task(self, place: Place, row: Mapping[str, Any]) -> Iterator[SpannedText]:
        """Read a task of Label Studio; of several annotators the first counts."""
        if not _is_list_of_objects(row["annotations"]):
            raise ValueError("'annotations' is not a list of objects")
        done = [found for found in row["annotations"] if not found.get("was_cancelled")]
        if not done:
            self.count["unannotated"] += 1
            return
        self.count["several"] += len(done) > 1
        results = done[0].get("result")
        if not _is_list_of_objects(results):
            raise ValueError("'result' of the first annotation is not a list of objects")
        values = [part.get("value") for part in results]
        spans = [value for value in values if isinstance(value, dict) and "labels" in value]
        yield from self._text(place, row["data"], row["data"], spans)

    def _text(
        self, place: Place, row: Mapping[str, Any], fields: Mapping[str, Any], spans: Any
    ) -> Iterator[SpannedText]:
        name = self.file.columns.get("text", "text")
        if name not in row:
            raise ValueError(
                f"has no field {name!r}; its fields are {', '.join(map(repr, fields)) or 'none'}"
            )
        text = row[name]
        if not isinstance(text, str | None):
            raise ValueError(f"{name!r} is {text!r}, which is not text")
        if text is None or not text.strip():
            self.count["empty"] += 1
            if self.file.skip_empty:
                return
            raise ValueError(f"{name!r} is empty")
        if not isinstance(spans, list):
            raise ValueError(f"the spans are {spans!r:.60} instead of a list of [start, end, label]")
        yield place, text, [read_span(value, text) for value in spans]

    def _aligned(
        self, place: Place, text: str, spans: list[LabelledSpan], bounds: list[tuple[int, int]]
    ) -> Any:
        """Lay spans over the words of a text; what does not fit is noted."""
        words = SpannedWords(text, bounds)

        def lay(span: LabelledSpan, label: str) -> None:
            check_known([f"B-{label}"], self.labels)
            words.lay(span, label)

        self._lay(place, words, spans, lay)
        return WordsExample(tuple(text[start:end] for start, end in bounds), tuple(words.tags), str(place))

    def _lay(
        self,
        place: Place,
        words: SpannedWords,
        spans: list[LabelledSpan],
        lay: Callable[[LabelledSpan, str], None],
    ) -> None:
        """Call `lay` with each span and its name, and count what was done to them."""
        for span in dict.fromkeys(spans):  # the same span twice is one
            label = self.file.label_map.get(span.label, span.label)
            if label is not None:
                try:
                    lay(span, label)
                except ValueError as error:
                    self.problems.add(place, str(error))
        self.count["spans"] += words.laid
        self.count["trimmed"] += words.trimmed
        self.moved += words.moved

    def _tell(self) -> None:
        """Warn of what was changed or left out. Raises DataError where most spans were moved."""
        spans, moved = self.count["spans"], len(self.moved)
        if moved:
            fact = f"{moved} of {spans} spans begin or end inside a word"
            shown = ", ".join(self.moved[:3])
            if moved > MAX_MOVED_SHARE * spans:
                raise DataError(self.path, None, f"{fact} ({shown}): start and end must count code points")
            logger.warning("%s: %s, and were moved to the word's edges: %s", self.path, fact, shown)
        for name, what in _WARNINGS.items():
            if self.count[name]:
                logger.warning("%s: %d %s", self.path, self.count[name], what)


_WARNINGS = {
    "trimmed": "spans had blanks at their ends, which were left out",
    "empty": "rows with an empty text were left out (skip_empty)",
    "rejected": "rows that were rejected or ignored were left out",
    "unannotated": "tasks without an annotation were left out",
    "several": "tasks have several annotations; the first was taken",
}


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_row(value: object) -> bool:
    """Tell a row from a list of rows: an object, or spaCy's pair of a text and an object."""
    is_pair = isinstance(value, list) and len(value) == 2
    return isinstance(value, dict) or (is_pair and isinstance(value[0], str) and isinstance(value[1], dict))  # type: ignore[index]


def _is_json_lines(first: str) -> bool:
    """Tell by its first line whether a file has one row a line. A line that is not whole JSON begins a list."""
    try:
        return _is_row(json.loads(first))
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # JSON that cannot be read: a long number, or nested too deeply
        return first.lstrip().startswith("{")
