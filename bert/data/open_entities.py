"""Texts with entities of any labels: GLiNER's json, and all that is read for NER.

    {"tokenized_text": ["Anna", "sang"], "ner": [[0, 0, "person"]]}

Entities are first word, last word and label. `ner_labels` and `ner_negatives`, lists of labels, say what it is asked for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert.data.entity_json import EntityReader
from bert.data.examples import EntitiesExample, LabelledFile, WordsExample
from bert.data.files import NOT_UNICODE, Place, holds_unicode
from bert.data.spans import LabelledSpan, SpannedWords
from bert.metrics.entities import bio_spans
from bert.tasks.open_ner.inputs import word_bounds
from bert.text.offsets import join_words, word_starts

WORDS = "tokenized_text"


def read_open_entities(file: LabelledFile) -> list[EntitiesExample]:
    """Read json as `read_entity_json` does, and GLiNER's; entities may overlap. Raises DataError with all problems."""
    return _OpenReader(file).read()


def with_open_labels(examples: Iterable[WordsExample]) -> list[EntitiesExample]:
    """Return sentences with tags as texts whose words are those of the service."""
    return [_of_tags(example) for example in examples]


def _of_tags(example: WordsExample) -> EntitiesExample:
    starts, text = word_starts(example.words), join_words(example.words)
    words = SpannedWords(text, bounds := word_bounds(text))
    entities = list[tuple[int, int, str]]()
    for label, first, end in bio_spans(example.labels):
        within = words.words_of(
            LabelledSpan(starts[first], starts[end - 1] + len(example.words[end - 1]), label)
        )
        entities.append((within[0], within[-1], label))
    return EntitiesExample(text, tuple(bounds), tuple(entities), example.id)


class _OpenReader(EntityReader):
    """Makes an EntitiesExample of each row."""

    def _row(self, place: Place, row: Any) -> Iterator[Any]:
        if not isinstance(row, dict) or WORDS not in row:
            yield from super()._row(place, row)
            return
        try:
            yield self._tokenized(place, row)
        except ValueError as error:
            self.problems.add(place, str(error))

    def _bounds(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return [word_bounds(text) for text in texts]

    def _tagged(self, place: Place, row: Mapping[str, Any]) -> EntitiesExample:
        return _of_tags(super()._tagged(place, row))

    def _aligned(
        self, place: Place, text: str, spans: list[LabelledSpan], bounds: list[tuple[int, int]]
    ) -> EntitiesExample:
        words, entities = SpannedWords(text, bounds), list[tuple[int, int, str]]()

        def lay(span: LabelledSpan, label: str) -> None:
            within = words.words_of(span)
            entities.append((within[0], within[-1], label))

        self._lay(place, words, spans, lay)
        return EntitiesExample(text, tuple(bounds), tuple(dict.fromkeys(entities)), str(place))

    def _tokenized(self, place: Place, row: Mapping[str, Any]) -> EntitiesExample:
        words, found = row[WORDS], row.get("ner")
        if not holds_unicode(list(row.values())):
            raise ValueError(NOT_UNICODE)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{WORDS!r} is not a list of words")
        if not isinstance(found, list):
            raise ValueError(f"'ner' is {found!r:.60} instead of a list of [first word, last word, label]")
        entities = dict.fromkeys(self._entity(value, len(words)) for value in found)
        start, bounds = 0, list[tuple[int, int]]()
        for word in words:
            bounds.append((start, start + len(word)))
            start += len(word) + 1
        return EntitiesExample(
            " ".join(words),
            tuple(bounds),
            tuple((first, last, label) for first, last, label in entities if label is not None),
            str(place),
            _labels(row, "ner_labels"),
            _labels(row, "ner_negatives"),
        )

    def _entity(self, value: Any, words: int) -> tuple[int, int, str | None]:
        if (
            not isinstance(value, list)
            or len(value) != 3
            or [type(place) for place in value[:2]] != [int, int]
        ):
            raise ValueError(f"the entity {value!r:.60} is not [first word, last word, label]")
        first, last, label = value
        if not 0 <= first <= last < words:
            raise ValueError(f"the entity {value!r:.60} is not within the {words} words of its text")
        label = _label(label)
        return first, last, self.file.label_map.get(label, label)


def _label(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the label {value!r} is not a name")
    return value


def _labels(row: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the labels of a field, None without it."""
    found = row.get(name)
    if found is None:
        return None
    if not isinstance(found, list):
        raise ValueError(f"{name!r} is {found!r:.60} instead of a list of labels")
    return tuple(dict.fromkeys(map(_label, found)))
