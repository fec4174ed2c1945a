"""Hugging Face's inference API, at /hf/MODEL: what InferenceClient sends to a URL, by the model's task."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bert.errors import InvalidRequestError, displayed, shown
from bert.tasks.aggregation import Aggregation, EntityOptions, TaggedPiece
from bert.tasks.classification import Activation, Scoring
from bert.tasks.fill_mask import MAX_CANDIDATES
from bert.tasks.ner import Entity
from bert.tasks.spans import Answer
from bert.tasks.vectors.similarity import normalize
from bert.tokenizer import Tokenizer
from service.engine.models import Model
from service.http.compat.base import (
    EXAMPLE_INFO,
    CompatibleApi,
    answer,
    check_options,
    describe,
    error_response,
    health,
)
from service.http.compat.huggingface_requests import (
    InferenceRequest,
    OneText,
    Parameters,
    Plain,
    Question,
)
from service.http.compat.requests import Compared, refused, validate
from service.http.problems import ProblemError
from service.http.request_body import validated
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts, too_many_texts
from service.tasks.classification import classify, classify_by_labels
from service.tasks.embed import INLINE_VECTORS
from service.tasks.fill_mask import fill_masks
from service.tasks.label_sets import OPEN_CLASSIFICATION, LabelSets, inference_or_refuse
from service.tasks.ner import NerRequest, entities, entities_of_labels, tagged_pieces
from service.tasks.qa import MAX_ANSWERS, answers, span_result
from service.tasks.rerank import Relevance
from service.tasks.task import INLINE_RESULTS, Call, embed, in_parts, prompted

ACTIVATIONS: dict[str | None, Activation] = {"softmax": "softmax", "sigmoid": "sigmoid", "none": "identity"}
"""Value of `function_to_apply` → what is taken instead of the model's own."""
ZERO_SHOT = "zero-shot-classification"
"""The hub's name of classification by the labels of a request."""
Content = Callable[[], object]
"""Makes the JSON of a response, in a thread if that takes long."""


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return an error as InferenceClient reads it."""
    return error_response(problem, problem.status, {"error": problem.detail})


API = CompatibleApi(
    "huggingface",
    "Hugging Face's InferenceClient: its model or endpoint is the URL `/hf/MODEL`.",
    paths=r"/hf(/.*)?",
    write_error=write_error,
)


@API.post(
    "/hf/{model}",
    "/hf/{model}/",
    "/hf/{model}/pipeline/{task}",
    answer=[[{"label": "positive", "score": 0.99}]],
)
async def infer(request: TaskRequest, body: InferenceRequest) -> Response:
    """Run the model's task."""
    model = request.find(request.path_params["model"], None).model
    form, asked = FORMS.get(model.spec.task), request.path_params.get("task")
    if asked == ZERO_SHOT:
        inference_or_refuse(model, "pipeline")
        if body.options().candidate_labels is None:
            raise refused("candidate_labels", "is required: the labels to choose from")
    elif asked is not None and form is not None and asked not in form.pipelines:
        names = " or ".join(form.pipelines)
        message = f"is {displayed(asked)!r} in the path, and model {model.name!r} is for {names}"
        raise refused("pipeline", message)
    return await run(request, model, body)


async def run(request: TaskRequest, model: Model, body: InferenceRequest) -> Response:
    """Answer a request with a model, by its task."""
    call, form = request.call(model), FORMS.get(model.spec.task)
    if form is None:
        raise refused(
            "model", f"model {model.name!r} is for {model.spec.task}, which this wire does not have"
        )
    options = body.options()
    check_options(model, options, form.options)
    _check_windows(model, options)
    count, content = await form.run(call, body.inputs, options)
    return await request.write(count, lambda: answer(content()), form.max_inline)


@API.get("/hf/{model}/info", answer=EXAMPLE_INFO | {"auto_truncate": False})
async def info(request: Request) -> Response:
    """Describe the model and the limits of requests."""
    return answer(describe(request, auto_truncate=False))


API.get("/hf/{model}/health", answer=None, needs_key=False)(health)


async def _classify(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return a list of labels and scores for each text, also for one: InferenceClient takes the first list."""
    if options.candidate_labels is not None:
        return await _classify_by_labels(call, inputs, options, options.candidate_labels)
    if call.model.task == OPEN_CLASSIFICATION:
        raise refused("candidate_labels", "is required: the labels to choose from")
    for name in ("hypothesis_template", "multi_label"):
        if getattr(options, name):
            raise refused(name, "is for candidate_labels, and none were sent")
    if isinstance(inputs, dict) or (
        isinstance(inputs, list) and any(isinstance(each, dict) for each in inputs)
    ):
        rows = _objects(call, OneText, inputs)
        text = Texts("inputs", [row.text for row in rows], True)
        second = [row.text_pair for row in rows if row.text_pair is not None]
        pair = Texts("inputs.text_pair", second, True) if second else None
    else:
        text, pair = _texts(call, inputs), None
    model = call.model
    if model.spec.pair not in (None, pair is not None) or (pair is not None and len(pair) != len(text)):
        reads = "pairs: send text and text_pair" if model.spec.pair else "single texts"
        raise refused("inputs", f"do not fit: model {model.name!r} reads {reads}")
    call.check_count(text, *([pair] if pair is not None else []))
    scoring = Scoring(options.top_k, activation=ACTIVATIONS.get(options.function_to_apply))
    found, _ = await classify(call, text, pair, scoring, truncate=options.cuts())
    return sum(len(each.scores) for each in found), lambda: in_parts(
        in_parts({"label": label, "score": score} for label, score in each.scores) for each in found
    )


async def _classify_by_labels(
    call: Call, inputs: object, options: Parameters, sent: str | list[str]
) -> tuple[int, Content]:
    """Return the labels and scores of one text, or a list of those for each text of a list."""
    check_options(call.model, options, {*_ZERO_SHOT_OPTIONS, "top_k", *_CUTS})
    labels = [label.strip() for label in sent.split(",")] if isinstance(sent, str) else sent
    sets = LabelSets.of(
        labels, options.hypothesis_template, call.model, "candidate_labels", "hypothesis_template"
    )
    found, _ = await classify_by_labels(
        call,
        _texts(call, inputs),
        sets,
        Scoring(options.top_k),
        multi_label=bool(options.multi_label),
        truncate=options.cuts(),
    )

    def content() -> object:
        rows = (in_parts({"label": label, "score": score} for label, score in each.scores) for each in found)
        return in_parts(rows) if isinstance(inputs, list) else next(rows)

    return sum(len(each.scores) for each in found), content


async def _entities(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return the entities of a text, or a list of those of each; without aggregation its pieces that have a tag."""
    aggregation, text = options.aggregation(), _texts(call, inputs)
    ignored = frozenset(options.ignore_labels or ())
    found: Sequence[Sequence[Any]]
    if aggregation is Aggregation.NONE:
        found = await tagged_pieces(call, text)
        show: Callable[[Any], dict[str, object]] = partial(_tagged_piece, call.model.tokenizer)
    else:
        found = await entities(call, text, EntityOptions(aggregation))
        show = _entity

    def shown() -> object:
        texts = [
            in_parts(
                row for row in map(show, each) if row.get("entity_group", row.get("entity")) not in ignored
            )
            for each in found
        ]
        return texts if text.is_list else texts[0]

    return len(text) + sum(map(len, found)), shown


async def _entities_of_labels(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return the entities of `labels` in a text, or a list of those of each."""
    text = _texts(call, inputs)
    asked = {"text": text.values, "labels": options.labels, "threshold": options.threshold}
    asked |= {"flat": options.flat_ner, "multi_label": options.multi_label}
    native = validated(NerRequest, asked, call.pipeline.max_texts)
    found = await entities_of_labels(call, text, native)

    def shown() -> object:
        texts = [in_parts(map(_entity, each)) for each in found]
        return texts if text.is_list else texts[0]

    return len(text) + sum(map(len, found)), shown


def _entity(entity: Entity) -> dict[str, object]:
    """Return an entity; `word` is the text's own [start:end]."""
    return {
        "entity_group": entity.label,
        "score": entity.score,
        "word": entity.text,
        "start": entity.start,
        "end": entity.end,
    }


def _tagged_piece(tokenizer: Tokenizer, piece: TaggedPiece) -> dict[str, object]:
    """Return a piece with its tag; `index` counts [CLS] too; `word` is the vocabulary's piece, or the text's if unknown."""
    entity = piece.entity
    is_unknown = piece.token_id == tokenizer.unk_id
    return {
        "entity": entity.label,
        "score": entity.score,
        "index": piece.index + 1,
        "word": entity.text if is_unknown else tokenizer.id_to_token(piece.token_id),
        "start": entity.start,
        "end": entity.end,
    }


async def _answers(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return the best answer, or a list of `top_k`; no answer counts only with `handle_impossible_answer`, or alone."""
    rows = _objects(call, Question, inputs)
    question = Texts("inputs.question", [row.question for row in rows], True)
    passage = Texts("inputs.context", [row.context for row in rows], True)
    call.check_count(question, passage)
    top_k = options.top_k or 1
    if top_k > MAX_ANSWERS:
        raise refused("top_k", f"must be at most {MAX_ANSWERS}")
    longest = options.max_answer_len
    found = await answers(call, question, passage, top_k=top_k + 1, max_answer_tokens=longest)

    def shown() -> object:
        spans = (_spans(each, may_be_none=options.handle_impossible_answer)[:top_k] for each in found)
        results = [each if top_k > 1 else each[0] for each in spans]
        return results if isinstance(inputs, list) else results[0]

    return len(rows) * top_k, shown


def _spans(found: Answer, *, may_be_none: bool) -> list[Any]:
    """Return the answers, best first; no answer is an empty one."""
    nothing = {"answer": "", "score": found.no_answer_score, "start": 0, "end": 0}
    best = [found.span] if found.span is not None else []
    spans: list[Any] = [span_result(each) for each in (*best, *found.alternatives)]
    return [nothing, *spans] if found.span is None and (may_be_none or not spans) else spans


async def _embed(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return a vector for each text, or the cosines of `sentences` with `source_sentence`."""
    if options.encoding_format not in (None, "float"):
        raise refused("encoding_format", "must be float; /v1/embeddings has base64")
    model = call.model
    if isinstance(inputs, dict):
        compared = validate(Compared, inputs, "inputs")
        source = Texts.of("inputs.source_sentence", compared.source_sentence)
        sentences = Texts.of("inputs.sentences", compared.sentences)
        call.check_count(source, sentences)
        source, sentences = (prompted(each, model, options.prompt_name) for each in (source, sentences))
        embedded = await embed(
            call,
            source,
            sentences,
            truncate=options.cuts(),
            dimensions=options.dimensions,
            shown=False,
        )
        cosines = Relevance.of_vectors(embedded).scores.tolist()
        return 1, lambda: in_parts(cosines)
    text = prompted(_texts(call, inputs), model, options.prompt_name)
    embedded = await embed(call, text, truncate=options.cuts(), dimensions=options.dimensions)
    unit = bool(options.normalize) and not model.spec.normalize
    vectors = normalize(embedded.vectors) if unit else embedded.vectors
    return len(text), lambda: in_parts(vectors)


async def _fill_masks(call: Call, inputs: object, options: Parameters) -> tuple[int, Content]:
    """Return the candidates of a mask; of several masks a list for each."""
    top_k = options.top_k or 5
    if top_k > MAX_CANDIDATES:
        raise refused("top_k", f"must be at most {MAX_CANDIDATES}")
    text = _texts(call, inputs)
    found = await fill_masks(call, text, top_k=top_k)

    def shown() -> object:
        with call.context.timed("decode"):
            texts = [[_candidates(mask.candidates) for mask in masks] for masks in found.texts]
        flat = [masks[0] if len(masks) == 1 else masks for masks in texts]
        return flat if text.is_list else flat[0]

    return found.results, shown


def _candidates(candidates: Sequence[Any]) -> list[object] | object:
    return in_parts(
        {"score": each.score, "token": each.id, "token_str": each.token, "sequence": each.sequence}
        for each in candidates
    )


@dataclass(frozen=True, slots=True)
class Form:
    """What a task takes and gives here."""

    pipelines: tuple[str, ...]
    """The hub's names of it, which may stand in the path."""
    options: Collection[str]
    run: Callable[[Call, object, Parameters], Awaitable[tuple[int, Content]]]
    """Returns the number of results, and what makes their JSON."""
    max_inline: int = INLINE_RESULTS
    """Most results that are written on the event loop."""


_ZERO_SHOT_OPTIONS = ("candidate_labels", "hypothesis_template", "multi_label")
_CUTS = ("truncate", "truncation", "truncation_direction")
_WINDOWS = ("max_question_len", "max_seq_len", "doc_stride")
FORMS: dict[str, Form] = {
    "classification": Form(
        ("text-classification", "sentiment-analysis"),
        ("top_k", "function_to_apply", *_ZERO_SHOT_OPTIONS, *_CUTS),
        _classify,
    ),
    OPEN_CLASSIFICATION: Form((ZERO_SHOT,), (*_ZERO_SHOT_OPTIONS, "top_k", *_CUTS), _classify),
    "ner": Form(
        ("token-classification", "ner"), ("aggregation_strategy", "ignore_labels", "stride"), _entities
    ),
    "open_ner": Form(
        ("token-classification", "ner"),
        ("labels", "threshold", "flat_ner", "multi_label"),
        _entities_of_labels,
    ),
    "qa": Form(
        ("question-answering",),
        ("top_k", "handle_impossible_answer", "max_answer_len", "align_to_words", *_WINDOWS),
        _answers,
    ),
    "similarity": Form(
        ("feature-extraction", "sentence-similarity"),
        ("prompt_name", "normalize", "dimensions", "encoding_format", *_CUTS),
        _embed,
        INLINE_VECTORS,
    ),
    "fill_mask": Form(("fill-mask",), ("top_k",), _fill_masks),
}
"""Models' task → its form."""


def _check_windows(model: Model, options: Parameters) -> None:
    """Refuse other windows over long texts than the model's own."""
    spec = model.spec
    own = {
        "stride": spec.stride,
        "doc_stride": spec.stride,
        "max_seq_len": spec.max_tokens,
        "max_question_len": spec.max_question_tokens,
    }
    for name, value in own.items():
        given = getattr(options, name)
        if given not in (None, value):
            message = f"is {shown(given)}, and the windows of model {model.name!r} have {value}: leave it out"
            raise refused(name, message)


def _texts(call: Call, inputs: object) -> Texts:
    text = Texts.of("inputs", validate(Plain, {"inputs": inputs}).inputs)
    call.check_count(text)
    return text


def _objects(call: Call, schema: type[Any], inputs: object) -> list[Any]:
    """Read one object or a list of them, up to the first that is wrong."""
    items = inputs if isinstance(inputs, list) else [inputs]
    limit = call.pipeline.max_texts
    if len(items) > limit:
        raise InvalidRequestError([too_many_texts("inputs", len(items), limit)])
    found = []
    for number, each in enumerate(items):
        place = f"inputs[{number}]" if isinstance(inputs, list) else "inputs"
        if not isinstance(each, dict):
            form = f"an object with {' and '.join(schema.model_fields)}, or a list of such objects"
            raise refused(place, f"must be {form}, not {shown(each)}")
        found.append(validate(schema, each, place))
    return found
