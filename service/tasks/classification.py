"""Labels of texts, or of pairs of texts: /classify."""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bert.encoding import Encoding, Ints
from bert.errors import FieldError, InvalidRequestError
from bert.graph_inputs import joined
from bert.tasks import classification, zero_shot
from bert.tasks.classification import ALL_SCORES, Classification, Scoring, WindowMerge, activation_of
from bert.tasks.open_classification.task import encode, prompt_ids
from bert.tasks.prompts import room
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Window
from service.engine.models import Model, Registry
from service.pipeline.inputs import TextLists, Texts, make_each, pair_count
from service.pipeline.pipeline import window_tokens
from service.tasks.label_sets import (
    OPEN_CLASSIFICATION,
    PLACE,
    SCORE_BYTES,
    TEMPLATE,
    LabelSets,
    check_pieces,
    find_label_model,
    inference_or_refuse,
)
from service.tasks.schema import (
    RESULT_BYTES,
    Example,
    Hypotheses,
    ModelName,
    NonEmpty,
    Schema,
    Share,
    Text,
    TopK,
    Truncate,
    Truncated,
    TypedDict,
    complete,
    number,
    text_size,
)
from service.tasks.task import Call, ListItems, Results, ServedTask, response_example

Temperature = Annotated[
    float, Field(gt=0, le=100), number("a number above 0 and at most 100", lambda value: 0 < value <= 100)
]
JUDGEMENT = re.compile(r"\b(positive|pos|stars?)\b", re.IGNORECASE)
"""Part of a label of models that are shown opinions."""
OPINIONS: tuple[Example, ...] = (
    {"text": "A warm, funny film that I would gladly see again."},
    {"text": "Dull, far too long and badly acted."},
    {
        "text": "The room was spotless and the staff could not have been kinder, but the music from the bar kept us "
        "awake until three."
    },
)
ANYTHING: tuple[Example, ...] = (
    {"text": "My parcel still has not arrived. Can I have my money back?"},
    {"text": "The app crashes when I open a photo."},
    {"text": "I can't believe that we got the tickets, I am so happy!"},
    {"text": "The central bank left its interest rate at two percent."},
)
"""Texts for models of which only the labels are known."""
LABELLED: tuple[Example, ...] = ({**ANYTHING[0], "labels": ["delivery", "payment", "account"]},)
"""Texts for models that take labels and have none."""
PAIRS: tuple[Example, ...] = (
    {"text": "A man is playing a guitar.", "text_pair": "Someone is making music."},
    {"text": "The shop is closed on Sundays.", "text_pair": "You can buy it there on Sunday."},
)
STRIDE_DIVISOR = 8
"""Divisor of `max_tokens` that gives the stride of a model without its own: windows share an eighth."""


class ClassifyRequest(Schema):
    """One text or a list of texts, or pairs of texts.

    A pair is two strings, two lists of equal length, or one string that goes with each item of a list.

    Some models take `labels`, and then read single texts. One of natural language inference reads each beside a sentence
    about each label, a GLiClass beside all labels at once.
    """

    example: ClassVar[Example] = {"text": "A warm, funny film that I would gladly see again."}
    nested: ClassVar[frozenset[str]] = frozenset({"labels"})

    text: Text
    text_pair: Text | None = Field(None, description="Second text of each pair, for models trained on pairs.")
    top_k: TopK | None = Field(None, description="Number of scores, best first. Default: all labels.")
    threshold: Share | None = Field(
        None, description="Lowest score in `scores`, which may be empty. `label` is the best one in any case."
    )
    temperature: Temperature | None = Field(
        None, description="Divisor of the logits before softmax or sigmoid. Default: 1."
    )
    windows: WindowMerge | None = Field(
        None,
        description="Read long texts in overlapping windows. The score of a label is the highest of the windows, or "
        "their mean by the tokens of the text in each. Single texts only, and without `truncate`.",
    )
    labels: NonEmpty[str] | NonEmpty[NonEmpty[str]] | Hypotheses | None = Field(
        None,
        description="Labels to choose from, by a model that takes them (`takes_labels` of /models): a list for all texts, a "
        "list of lists with one for each text, or an object of what the model reads for each label.",
    )
    template: str | None = Field(
        None,
        description=f"What is read for each of `labels`, with {PLACE} in its place. Default: `{TEMPLATE}`, and for a model "
        f"that judges all labels in one run `{PLACE}`.",
    )
    multi_label: bool = Field(
        False,
        strict=True,
        description="Judge each of `labels` by itself: several may hold, or none. Else their scores add up to 1.",
    )
    truncate: Truncate = False
    model: ModelName = None

    def scoring(self) -> Scoring:
        """Return what is asked of the scores."""
        if self.top_k is None and self.threshold is None and self.temperature is None:
            return ALL_SCORES
        return Scoring(self.top_k, self.threshold, self.temperature)


@complete
class LabelScore(TypedDict):
    """A label and its score."""

    label: str
    score: float


@complete
class ClassifyResult(LabelScore):
    """The best label, and the scores of all labels or of those that were asked for."""

    scores: Annotated[
        list[LabelScore],
        Field(description="Best first. Probabilities, or the predicted number of a regression model."),
    ]
    truncated: Truncated


class Classify(ServedTask[ClassifyRequest]):
    """Classify texts or pairs of texts."""

    path, model_task, other_tasks = "/classify", "classification", (OPEN_CLASSIFICATION,)
    request, result = ClassifyRequest, ClassifyResult
    order = "One result for each text or pair, in order."
    texts, more = ("text", "text_pair"), "scores"
    example = response_example(
        "sentiment",
        14,
        {
            "label": "positive",
            "score": 0.999,
            "scores": [{"label": "positive", "score": 0.999}, {"label": "negative", "score": 0.001}],
            "truncated": False,
        },
    )

    def fields(self, spec: TaskSpec) -> tuple[str, ...]:
        """Return `text`, and `text_pair` where the model reads pairs."""
        return self.texts if spec.pair is not False else self.texts[:1]

    def fields_among(
        self, spec: TaskSpec, given: Collection[str], options: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return `text` alone where labels are sent."""
        return self.texts[:1] if "labels" in options else super().fields_among(spec, given, options)

    def examples_of(self, spec: TaskSpec) -> Sequence[Example]:
        """Return the model's own examples, else opinions for labels of sentiment, else texts of all kinds or with labels."""
        if spec.task == OPEN_CLASSIFICATION:
            return spec.examples or LABELLED
        judges = any(JUDGEMENT.search(label) for label in spec.labels)
        return spec.examples or (PAIRS if spec.pair else OPINIONS if judges else ANYTHING)

    def shows_more(self, spec: TaskSpec, options: Collection[str]) -> bool:
        """Tell whether scores are asked for, or several labels may hold."""
        asked = {"top_k", "threshold", "multi_label"} & set(options)
        return bool(asked) or spec.problem_type == "multi_label"

    def find(self, registry: Registry, name: str | None, request: ClassifyRequest) -> Model:
        """Return the named model, or the default one; where labels are sent, the first that takes them."""
        has_own = request.labels is None and self.model_task in registry.defaults
        found = None if name is not None or has_own else find_label_model(registry)
        return super().find(registry, name, request) if found is None else found

    async def run(self, call: Call, request: ClassifyRequest) -> Results:
        """Answer a request."""
        text = Texts.of("text", request.text)
        if request.labels is not None:
            results, truncated = await self._by_labels(call, text, request)
            count = sum(len(result.scores) for result in results)
            return Results(count, lambda listed: _rows(results, truncated, listed))
        _check_without_labels(call.model, request)
        pair = Texts.of("text_pair", request.text_pair) if request.text_pair is not None else None
        check_pair(call.model, text, pair)
        call.check_count(text, *([pair] if pair is not None else []))
        results, truncated = await classify(
            call, text, pair, request.scoring(), truncate=request.truncate, windows=request.windows
        )
        count = sum(len(result.scores) for result in results)
        return Results(count, lambda listed: _rows(results, truncated, listed))

    async def _by_labels(
        self, call: Call, text: Texts, request: ClassifyRequest
    ) -> tuple[list[Classification], list[bool]]:
        assert request.labels is not None
        for name in ("text_pair", "windows"):
            if getattr(request, name) is not None:
                raise InvalidRequestError(
                    [FieldError(name, "is not read with labels: leave one of them out")]
                )
        sets = LabelSets.of(request.labels, request.template, call.model)
        return await classify_by_labels(
            call, text, sets, request.scoring(), multi_label=request.multi_label, truncate=request.truncate
        )


def _check_without_labels(model: Model, request: ClassifyRequest) -> None:
    if model.task == OPEN_CLASSIFICATION:
        message = f"model {model.name!r} chooses from the request's labels: send at least one"
        raise InvalidRequestError([FieldError("labels", message)])
    given = {"template": request.template, "multi_label": request.multi_label or None}
    errors = [
        FieldError(name, "is for labels, and none were sent")
        for name, value in given.items()
        if value is not None
    ]
    if errors:
        raise InvalidRequestError(errors)


def _rows(
    results: Sequence[Classification], truncated: Sequence[bool], listed: ListItems
) -> Iterator[ClassifyResult]:
    for result, cut in zip(results, truncated, strict=True):
        scores: list[LabelScore] = [{"label": label, "score": score} for label, score in result.scores]
        yield {"label": result.label, "score": result.score, "scores": listed(scores), "truncated": cut}


async def classify(
    call: Call,
    text: Texts,
    pair: Texts | None,
    scoring: Scoring = ALL_SCORES,
    *,
    truncate: bool,
    windows: WindowMerge | None = None,
) -> tuple[list[Classification], list[bool]]:
    """Return a classification for each text or pair, and whether it was cut.

    With `windows` all of a long text is read, and the scores of its windows are merged.
    """
    spec = call.model.spec
    check_scoring(call.model, scoring)
    count = max(len(text), len(pair) if pair is not None else 0)
    call.note_size(text, count * scores_size(spec.labels, scoring.most_scores(spec)))
    if windows is not None:
        check_windows(pair, truncate=truncate)
        results = await _classify_windows(call, text, scoring, windows)
        truncated = [False] * len(text)
    else:
        encodings = await call.encode(text, pair, truncate=truncate)
        outputs = await call.infer(encodings)
        results = await call.decode(
            len(outputs) * len(spec.labels), lambda: classification.decode(joined(outputs), spec, scoring)
        )
        truncated = [encoding.truncated for encoding in encodings]
    is_probability = activation_of(spec) != "identity"
    if is_probability and scoring.activation is None and scoring.temperature is None:
        call.note_outcomes((result.label, result.score) for result in results)
        call.sample(lambda: _sampled(text, pair, results, spec))
    return results, truncated


def _sampled(
    text: Texts, pair: Texts | None, results: Sequence[Classification], spec: TaskSpec
) -> Iterator[dict[str, object]]:
    """Yield the rows of a sample; a margin is the distance to the second best label."""
    for i, result in enumerate(results):
        row: dict[str, object] = {"text": text.values[text.index(i)]}
        if pair is not None:
            row["text_pair"] = pair.values[pair.index(i)]
        if not all(map(str.strip, map(str, row.values()))):  # nothing to learn from
            continue
        likely = [label for label, score in result.scores if score >= 0.5]
        row["label"] = likely if spec.problem_type == "multi_label" else result.label
        best = [score for _, score in result.scores[:2]]
        yield {**row, "score": result.score, "margin": best[0] - best[1] if len(best) == 2 else None}


async def classify_by_labels(
    call: Call, text: Texts, sets: LabelSets, scoring: Scoring, *, multi_label: bool, truncate: bool
) -> tuple[list[Classification], list[bool]]:
    """Return a classification of each text by its labels, and whether it was cut; what is read for a label never is.

    Raises InvalidRequestError for a model that takes no labels.
    """
    meaning = inference_or_refuse(call.model, sets.hypotheses.name)
    call.check_count(text)
    sets.check(text, call.pipeline.max_texts)
    call.note_size(text, sets.size(len(text), scoring.top_k))
    if meaning is None:
        rows = await _encode_beside_labels(call, text, sets.hypotheses, truncate=truncate)
    else:
        rows = await call.encode_with_each(
            text, sets.hypotheses, len(text), truncate=truncate, keep_beside=True
        )
    flat = [encoding for each in rows for encoding in each]
    outputs = iter(await call.infer(flat))

    def decode() -> list[Classification]:
        found = []
        for item, row in enumerate(rows):
            logits = joined([next(outputs) for _ in row])
            found.append(
                zero_shot.decode(logits, sets.of_text(item), meaning, scoring, multi_label=multi_label)
            )
        return found

    results = await call.decode(len(flat), decode)
    # Labels of requests have no bound, and each that is counted by name is a series in the metrics.
    call.note_outcomes(("other", result.score) for result in results)
    return results, [any(encoding.truncated for encoding in row) for row in rows]


async def _encode_beside_labels(
    call: Call, text: Texts, prompts: TextLists, *, truncate: bool
) -> list[list[Encoding]]:
    """Encode each text beside all its labels, in one input. Raises as `Call.encode` does, and for labels without pieces."""
    spec, tokenizer, bounded = call.model.spec, call.model.tokenizer, call.tokenizer(only_ids=True)
    prompt = spec.class_prompt
    assert prompt is not None
    places = prompts.places()
    with call.context.timed("tokenize"):
        sent = [prompts.lists[item][number] for item, number in places]
        found = await bounded.pieces([*text.values, *sent], spec.max_tokens if truncate else None)
        texts, labels = found[: len(text)], found[len(text) :]
        bounded.note_unknown(texts, text.where)
        bounded.note_unknown(labels, lambda index: prompts.where(*places[index]))
        check_pieces(labels, lambda index: prompts.where(*places[index]))
        rest = iter(labels)

        def read(item: int) -> tuple[Ints, NDArray[np.intp]]:
            before = prompt_ids([next(rest).ids for _ in prompts.lists[item]], prompt)
            room(len(before[0]), spec)
            return before

        beside = make_each(len(prompts.lists), read, prompts.where)
        lengths = (2 + len(each) + len(beside[prompts.index(item)][0]) for item, each in enumerate(texts))
        bounded.check_tokens(sum(min(length, spec.max_tokens) for length in lengths))

        def make(item: int) -> list[Encoding]:
            return [encode(texts[item], beside[prompts.index(item)], tokenizer, spec, truncate=truncate)]

        return await bounded.build(len(text), lambda: make_each(len(text), make, text.where))


async def _classify_windows(
    call: Call, text: Texts, scoring: Scoring, merge: WindowMerge
) -> list[Classification]:
    with call.context.timed("tokenize"):
        windows = await _whole_windows(call, text)
    logits, spec = await call.infer_windows(windows), call.model.spec

    def decode() -> list[Classification]:
        tokens = [[window.stop - window.start for window in each] for each in windows]
        rows = [joined(each) for each in logits]
        return classification.decode_windows(rows, tokens, spec, merge, scoring)

    return await call.decode(sum(map(len, windows)) * len(spec.labels), decode)


async def _whole_windows(call: Call, text: Texts) -> list[list[Window]]:
    """Return each text's windows, at least one, which hold all of it. Raises what `BoundedTokenizer.pieces` does."""
    model, bounded = call.model, call.tokenizer(only_ids=True)
    limit, stride = model.spec.max_tokens, window_stride(model)
    pieces, around = await bounded.pieces(text.values), model.tokenizer.form.special_tokens(1)
    bounded.note_unknown(pieces, text.where)
    bounded.check_tokens(sum(window_tokens(len(each), limit, stride, around) for each in pieces))
    return await bounded.build(
        len(text), lambda: [model.tokenizer.windows(each, limit, stride) for each in pieces]
    )


def window_stride(model: Model) -> int:
    """Return how many tokens two neighbouring windows of a long text share."""
    return model.spec.stride or model.spec.max_tokens // STRIDE_DIVISOR


@lru_cache(maxsize=256)  # each request asks, and the labels are the models'
def scores_size(labels: tuple[str, ...], count: int) -> int:
    """Return the most bytes of a text's best label and of `count` labels with their scores."""
    longest = sorted(map(text_size, labels), reverse=True)
    return RESULT_BYTES + longest[0] + sum(longest[:count]) + SCORE_BYTES * min(count, len(longest))


def check_pair(model: Model, text: Texts, pair: Texts | None) -> None:
    """Refuse a pair for a model of single texts, and a single text for a model of pairs; some models read both."""
    if pair is not None and model.spec.pair is False:
        raise InvalidRequestError([FieldError("text_pair", f"model {model.name!r} reads single texts")])
    if pair is None and model.spec.pair:
        instead = ", or labels to choose from" if zero_shot.takes_labels(model.spec) else ""
        message = f"is required: model {model.name!r} reads pairs{instead}"
        raise InvalidRequestError([FieldError("text_pair", message)])
    if pair is not None:
        pair_count(text, pair)


def check_scoring(model: Model, scoring: Scoring) -> None:
    """Refuse a threshold or temperature for a model whose scores are no probabilities."""
    given = {"threshold": scoring.threshold, "temperature": scoring.temperature}
    if scoring is ALL_SCORES or (scoring.activation or activation_of(model.spec)) != "identity":
        return
    message = "is {}, and model {!r} gives numbers, not probabilities: leave it out"
    errors = [
        FieldError(name, message.format(value, model.name))
        for name, value in given.items()
        if value is not None
    ]
    if errors:
        raise InvalidRequestError(errors)


def check_windows(pair: Texts | None, *, truncate: bool) -> None:
    """Refuse windows over pairs, and over texts that are cut."""
    if pair is not None:
        raise InvalidRequestError([FieldError("text_pair", "is not read in windows: leave windows out")])
    if truncate:
        message = "reads all of a long text, and truncate cuts it: send one of the two"
        raise InvalidRequestError([FieldError("windows", message)])
