"""Entities of texts: /ner."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Annotated, ClassVar, TypeVar

import numpy as np
from pydantic import Field

from bert.encoding import Ints, Pieces
from bert.errors import DeadlineExceededError, FieldError, InvalidRequestError, displayed
from bert.tasks import aggregation, ner
from bert.tasks.aggregation import PLAIN, Aggregation, EntityOptions, TaggedPiece
from bert.tasks.ner import Entity
from bert.tasks.open_ner.decode import FLOOR, Choosing
from bert.tasks.open_ner.decode import decode as decode_open
from bert.tasks.open_ner.inputs import Words, each_word, label_input, prompt_ids, windows
from bert.tasks.prompts import room
from bert.tasks.spec import IGNORED_WORDS, TaskSpec
from bert.tasks.tags import TagScheme
from bert.tokenizer import Window
from service.engine.models import Floats, Model, Registry
from service.pipeline.inputs import TextLists, Texts, make_each
from service.pipeline.pipeline import BoundedTokenizer, is_short_text, window_tokens
from service.tasks.label_sets import LabelSets, check_pieces
from service.tasks.schema import (
    Example,
    HasBounds,
    Hypotheses,
    ModelName,
    NonEmpty,
    Schema,
    Share,
    Text,
    TypedDict,
    complete,
    number,
    spans_size,
    text_size,
)
from service.tasks.task import Call, ListItems, Results, ServedTask, response_example

OPEN_NER = "open_ner"
"""Task of models that take labels of a request."""
Stretch = TypeVar("Stretch", bound=HasBounds)
_NO_IDS = np.zeros(0, np.int32)
_AT_ONCE = 1024
"""Words that are cut out of a text at once."""


Threshold = Annotated[
    float,
    Field(ge=FLOOR, lt=1),
    number(f"a number of at least {FLOOR} and below 1", lambda value: FLOOR <= value < 1),
]
_CHOOSING = tuple(field.name for field in fields(Choosing))
OPEN_EXAMPLE: Example = {
    "text": "Ada Lovelace took the 8:15 train from London to see the Analytical Engine.",
    "labels": ["person", "city", "time", "machine"],
}


class NerRequest(Schema):
    """One text or a list of texts, of any length."""

    example: ClassVar[Example] = {"text": "Angela Merkel met engineers from Siemens in Munich."}
    names: ClassVar[frozenset[str]] = frozenset({"labels", "left_out"})
    nested: ClassVar[frozenset[str]] = frozenset({"labels"})

    text: Text
    min_score: Share | None = Field(
        None, description="Entities with a lower score are left out. Default: none are."
    )
    labels: NonEmpty[str] | NonEmpty[NonEmpty[str]] | Hypotheses | None = Field(
        None,
        description="Types of the entities to keep: `entity_types` of /models. Default: all types. A model that takes "
        "labels (`takes_labels` of /models) finds entities of any: a list for all texts, a list of lists with one for each "
        "text, or an object of what it reads for each label.",
    )
    threshold: Threshold | None = Field(
        None, description="Of `labels` of any kind: score that an entity must exceed. Default: 0.5."
    )
    flat: bool | None = Field(
        None,
        strict=True,
        description="Of `labels` of any kind: no two entities overlap. False: one may lie within another. Default: true.",
    )
    multi_label: bool | None = Field(
        None,
        strict=True,
        description="Of `labels` of any kind: the same words may be entities of several labels. Default: false.",
    )
    join: bool | None = Field(
        None,
        strict=True,
        description="Of `labels` of any kind: neighbouring entities of one label are one. Default: false.",
    )
    aggregation: Aggregation = Field(
        Aggregation.FIRST,
        description="Way from the model's pieces to entities. Of each word the `first` piece decides its label, the "
        "`average` of all pieces, or the one with the highest probability (`max`). `simple` joins neighbouring pieces "
        "whatever their words; `none` gives each piece with its tag.",
    )
    left_out: NonEmpty[str] | None = Field(
        None,
        description="Kinds of words that no entity has: `symbols` such as emoji, and `handles`, names after an at sign. "
        "`punctuation` drops entities that are nothing else. "
        "Default: those that the model leaves out (`left_out` of its task.json).",
    )
    model: ModelName = None

    @property
    def open_fields(self) -> list[str]:
        """Names of the fields that only models for labels of the request read."""
        given = [name for name in _CHOOSING if getattr(self, name) is not None]
        return [*given, *(["labels"] if self.labels is not None and self.types is None else [])]

    @property
    def types(self) -> list[str] | None:
        """The labels where they are one list of strings, as types of entities are; else None."""
        if not isinstance(self.labels, list):
            return None
        found = [label for label in self.labels if isinstance(label, str)]
        return found if len(found) == len(self.labels) else None


@complete
class NerResult(TypedDict):
    """The entities of one text, in text order."""

    entities: list[Entity]


class Ner(ServedTask[NerRequest]):
    """Find the entities of texts."""

    path, model_task, other_tasks = "/ner", "ner", (OPEN_NER,)
    request, result = NerRequest, NerResult
    order = "One result for each text, in order."
    example = response_example(
        "ner",
        12,
        {
            "entities": [
                {"text": "Angela Merkel", "label": "PER", "start": 0, "end": 13, "score": 0.99},
                {"text": "Siemens", "label": "ORG", "start": 33, "end": 40, "score": 0.98},
                {"text": "Munich", "label": "LOC", "start": 44, "end": 50, "score": 0.99},
            ]
        },
    )

    def examples_of(self, spec: TaskSpec) -> Sequence[Example]:
        """Return the model's own examples, or one with labels for a model that takes them."""
        return spec.examples or ((OPEN_EXAMPLE,) if spec.task == OPEN_NER else ())

    def find(self, registry: Registry, name: str | None, request: NerRequest) -> Model:
        """Return the named model, or the default one: for labels that it lacks, and their options, one that takes any."""
        if name is not None:
            return super().find(registry, name, request)
        default = registry.defaults.get("ner")
        asks = default is None or bool(request.open_fields)
        if not asks and (own := registry.models.get(default or "")) is not None:
            asks = not set(request.types or ()) <= set(TagScheme.of(own.spec.labels).types)
        is_open = OPEN_NER in registry.defaults and asks
        return registry.find(None, OPEN_NER if is_open else self.model_task)

    async def run(self, call: Call, request: NerRequest) -> Results:
        """Answer a request."""
        text, model = Texts.of("text", request.text), call.model
        call.check_count(text)
        if model.task == OPEN_NER:
            found = await entities_of_labels(call, text, request)
        else:
            found = await _of_types(call, text, request)

        def rows(listed: ListItems) -> Iterator[NerResult]:
            return ({"entities": listed(each)} for each in found)

        return Results(len(text) + sum(map(len, found)), rows)


async def entities_of_labels(call: Call, text: Texts, request: NerRequest) -> list[list[Entity]]:
    """Return each text's entities of the request's labels. Raises InvalidRequestError for fields of other models."""
    if request.labels is None:
        message = f"model {call.model.name!r} finds entities of the request's labels: send at least one"
        raise InvalidRequestError([FieldError("labels", message)])
    defaults = {"min_score": None, "left_out": None, "aggregation": Aggregation.FIRST}
    theirs = [name for name, value in defaults.items() if getattr(request, name) != value]
    _refuse_fields(theirs, "is for models with labels of their own, and this one takes those of the request")
    asked = {name: getattr(request, name) for name in _CHOOSING}
    how = Choosing(**{name: value for name, value in asked.items() if value is not None})
    return await find_entities(call, text, LabelSets.as_sent(TextLists.of("labels", request.labels)), how)


async def _of_types(call: Call, text: Texts, request: NerRequest) -> list[list[Entity]]:
    """Return the entities of the model's types."""
    _refuse_fields(
        request.open_fields, "is for models that take the labels of a request: takes_labels of /models"
    )
    types = check_entity_types(call.model, request.types) if request.types is not None else None
    kinds = check_left_out(request.left_out) if request.left_out is not None else frozenset[str]()
    options = EntityOptions(request.aggregation, request.min_score or 0.0, types, kinds)
    return await entities(call, text, options)


async def entities(call: Call, text: Texts, options: EntityOptions = PLAIN) -> list[list[Entity]]:
    """Return each text's entities; long texts are read in windows."""
    found = await _tagged(call, text, options.decode, by_piece=options.by_piece)
    call.note_outcomes((entity.label, entity.score) for each in found for entity in each)
    if options == PLAIN:  # others keep some entities only, or see them otherwise
        call.sample(lambda: map(_sampled, text.values, found))
    return found


def _sampled(text: str, found: Sequence[Entity]) -> dict[str, object]:
    spans = [[entity.start, entity.end, entity.label] for entity in found]
    return {"text": text, "label": spans, "score": min((entity.score for entity in found), default=None)}


async def tagged_pieces(call: Call, text: Texts) -> list[list[TaggedPiece]]:
    """Return each text's pieces that have a tag; long texts are read in windows."""
    return await _tagged(call, text, aggregation.tagged_pieces, by_piece=True)


async def _tagged(
    call: Call,
    text: Texts,
    decode_one: Callable[[str, Pieces, Floats, TaskSpec], Iterable[Stretch]],
    *,
    by_piece: bool,
) -> list[list[Stretch]]:
    """Decode each text's pieces with the logits of its words; if `by_piece`, with those of its pieces."""
    bounded, spec = call.tokenizer(), call.model.spec
    with call.context.timed("tokenize"):
        pieces, windows = await text_windows(bounded, call.model, text, by_piece=by_piece)
    logits = await call.infer_windows(windows)

    def decode() -> list[list[Stretch]]:
        found = [
            list(decode_one(text.values[i], pieces[i], ner.merge_windows(windows[i], logits[i]), spec))
            if windows[i]
            else []
            for i in range(len(text))
        ]
        call.note_size(text, spans_size(chain.from_iterable(found)))
        return found

    return await call.decode(len(text), decode, text)


async def text_windows(
    bounded: BoundedTokenizer, model: Model, text: Texts, *, by_piece: bool = False
) -> tuple[list[Pieces], list[list[Window]]]:
    """Return each text's pieces and its windows with words; a text without a word has no window.

    In windows `by_piece` each piece is a word of its own.
    """
    spec, tokenizer, pieces = model.spec, model.tokenizer, await bounded.pieces(text.values)
    bounded.note_unknown(pieces, text.where)
    around = tokenizer.form.special_tokens(1)
    bounded.check_tokens(
        sum(window_tokens(len(p), spec.max_tokens, spec.stride, around) for p in pieces if len(p))
    )

    def windows() -> list[list[Window]]:
        words = [aggregation.pieces_as_words(p) for p in pieces] if by_piece else pieces
        found = [tokenizer.windows(p, spec.max_tokens, spec.stride) if len(p) else [] for p in words]
        return [[window for window in each if (window.encoding.word_ids >= 0).any()] for each in found]

    return pieces, await bounded.build(len(text), windows)


def check_entity_types(model: Model, labels: Sequence[str]) -> frozenset[str]:
    """Return the types of entities that a request asks for; refuse an empty list, and types that the model lacks."""
    types = TagScheme.of(model.spec.labels).types
    return _known(
        "labels", labels, types, lambda label: f"model {model.name!r} has no entities of type {label}"
    )


def check_left_out(kinds: Sequence[str]) -> frozenset[str]:
    """Return the kinds of words that a request leaves out of entities; refuse an empty list, and unknown kinds."""
    return _known("left_out", kinds, IGNORED_WORDS, lambda kind: f"{kind} is no kind of word to leave out")


def _known(
    field: str, names: Sequence[str], known: Sequence[str], refusal: Callable[[str], str]
) -> frozenset[str]:
    listed = ", ".join(known)
    errors = [
        FieldError(f"{field}[{i}]", f"{refusal(repr(displayed(name)))}; known are {listed}")
        for i, name in enumerate(names)
        if name not in known
    ]
    if not names:
        errors = [FieldError(field, f"is empty; name one of {listed}, or leave it out")]
    if errors:
        raise InvalidRequestError(errors)
    return frozenset(names)


async def find_entities(call: Call, text: Texts, sets: LabelSets, how: Choosing) -> list[list[Entity]]:
    """Return each text's entities of its labels; long texts are read in windows, each with all labels of the text."""
    spec = call.model.spec
    assert spec.label_prompt is not None
    prompt = spec.label_prompt
    sets.check(text)
    labels = sets.hypotheses
    words, cut = await _windows(call, text, labels)
    tokens_of_labels = 0
    if call.model.labels is not None and any(cut):
        tokens_of_labels = await _give_vectors(call, call.model.labels, labels, cut)
    outputs = await call.infer_windows(cut)
    call.context.tokens += tokens_of_labels

    def decode_one(i: int) -> list[Entity]:
        if time.monotonic() > call.context.deadline:
            raise DeadlineExceededError(call.context.timeout_ms)
        return decode_open(text.values[i], words[i].bounds, sets.of_text(i), cut[i], outputs[i], prompt, how)

    def read() -> list[list[Entity]]:
        found = make_each(len(text), decode_one, text.where)
        # A label may be as long as the text: of a word that it does not know, a tokenizer makes one piece.
        sizes = {name: text_size(name) for names in sets.labels for name in names}
        of_labels = sum(sizes[entity.label] for each in found for entity in each)
        call.note_size(text, spans_size(chain.from_iterable(found)) + of_labels)
        return found

    candidates = sum(map(len, chain.from_iterable(outputs)))
    entities = await call.decode(candidates, read, text)
    # Labels of requests have no bound, and each that is counted by name is a series in the metrics.
    call.note_outcomes(("other", entity.score) for each in entities for entity in each)
    return entities


async def _give_vectors(
    call: Call, encoder: Model, labels: TextLists, windows: Sequence[Sequence[Window]]
) -> int:
    """Give the windows the vectors of their labels, which their own encoder makes; return the tokens that it read.

    It reads labels whose vectors are not cached. Raises as `_windows`, and InvalidRequestError for labels over its length.
    """
    cache, places = call.pipeline.label_vectors, dict[str, tuple[int, int]]()
    for item, place in labels.places():
        places.setdefault(labels.lists[item][place], (item, place))
    found = cache.find(call.model.id, list(places))
    tokens = 0
    if new := [label for label in places if label not in found]:
        bounded = replace(call.tokenizer(only_ids=True), tokenizer=encoder.tokenizer)

        def where(index: int) -> str:
            return labels.where(*places[new[index]])

        with call.context.timed("tokenize"):
            pieces = await bounded.pieces(new)
            check_pieces(pieces, where)
            longest = encoder.spec.max_tokens
            encodings = make_each(
                len(new), lambda index: label_input(pieces[index], encoder.tokenizer, longest), where
            )
        outputs = await call.infer(encodings)
        tokens = call.context.tokens
        # Copied: an output is a part of what came with it, all of which it would keep.
        read = [(label, output[0].copy()) for label, output in zip(new, outputs, strict=True)]
        cache.add(call.model.id, read)
        found |= read
    vectors = [np.stack([found[label] for label in each]) for each in labels.lists]
    for item, each in enumerate(windows):
        for window in each:
            window.encoding.label_vectors = vectors[labels.index(item)]
    return tokens


async def _windows(call: Call, text: Texts, labels: TextLists) -> tuple[list[Words], list[list[Window]]]:
    """Return each text's words and its windows, none for a text without words.

    Raises what `BoundedTokenizer.pieces` does, and InvalidRequestError for labels that leave a text no room.
    """
    spec, tokenizer, bounded = call.model.spec, call.model.tokenizer, call.tokenizer(only_ids=True)
    assert spec.label_prompt is not None
    prompt = spec.label_prompt

    places = labels.places() if call.model.labels is None else []
    sent = [labels.lists[item][place] for item, place in places]

    def split() -> tuple[list[Ints], Counter[str]]:
        bounds = [_bounds(value) for value in text.values]
        every = (word for value, at in zip(text.values, bounds, strict=True) for word in _words(value, at))
        return bounds, Counter(chain(sent, every))  # a text repeats most of its words

    with call.context.timed("tokenize"):
        is_short = is_short_text(text.values)
        bounds, counts = split() if is_short else await call.pipeline.run_in_thread(split)
        pieces = await bounded.pieces(list(counts))
        bounded.tokens += counts.total() - len(counts)

        def build() -> tuple[list[Words], list[list[Window]]]:
            found = dict(zip(counts, pieces, strict=True))
            bounded.check_tokens(sum(number * len(found[word]) for word, number in counts.items()))

            def read(item: int) -> tuple[Ints, list[int]]:
                before = prompt_ids(
                    [found[label].ids for label in labels.lists[item]] if sent else [], prompt
                )
                room(len(before[0]), spec)
                return before

            def where(index: int) -> str:
                return labels.where(*places[index])

            before, of_labels = (
                make_each(len(labels.lists), read, labels.where),
                [found[each] for each in sent],
            )
            check_pieces(of_labels, where)
            bounded.note_unknown(of_labels, where)
            words = [
                Words.of(at, [found[word].ids for word in _words(value, at)])
                for value, at in zip(text.values, bounds, strict=True)
            ]
            of_texts = [Pieces(np.concatenate([_NO_IDS, *each.ids]), each.bounds, _NO_IDS) for each in words]
            bounded.note_unknown(of_texts, text.where)
            cut = [windows(each, before[labels.index(i)], tokenizer, spec) for i, each in enumerate(words)]
            return words, cut

        return await (bounded.build(len(text), build) if is_short else call.pipeline.run_in_thread(build))


def _bounds(text: str) -> Ints:
    """Return start and end (W, 2) of each word: as an array, because to free a million pairs would hold the event loop."""
    return np.fromiter((place for at in each_word(text) for place in at), np.int32).reshape(-1, 2)


def _words(text: str, bounds: Ints) -> Iterator[str]:
    """Yield the words; pairs are made a few at a time, as no other thread runs meanwhile."""
    for first in range(0, len(bounds), _AT_ONCE):
        yield from (text[a:b] for a, b in bounds[first : first + _AT_ONCE].tolist())


def _refuse_fields(names: Iterable[str], why: str) -> None:
    """Raise InvalidRequestError if a request has fields that its model does not read."""
    if errors := [FieldError(name, why) for name in names]:
        raise InvalidRequestError(errors)
