"""Answers to questions from their contexts: /qa."""

from typing import Annotated, ClassVar

from pydantic import Field

from bert.encoding import Pieces
from bert.errors import FieldError, InputError, InvalidRequestError
from bert.tasks import qa, spans
from bert.tasks.spans import Answer
from bert.text.offsets import MarkEnds
from bert.tokenizer import Window
from service.engine.models import Model
from service.pipeline.inputs import Texts, check_not_blank, make_each, pair_count
from service.pipeline.pipeline import BoundedTokenizer, window_tokens
from service.tasks.schema import (
    Example,
    ModelName,
    NonEmpty,
    NotBlank,
    Schema,
    Share,
    TypedDict,
    complete,
    spans_size,
    whole,
)
from service.tasks.task import Call, Results, ServedTask, response_example

MAX_ANSWERS = 100
AnswerTokens = Annotated[int, Field(ge=1, le=512), whole(1, 512)]


class QaRequest(Schema):
    """Questions and contexts.

    Two strings, two lists of equal length, or one string that goes with each item of a list.
    """

    example: ClassVar[Example] = {
        "question": "Where was Marie Curie born?",
        "context": "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics.",
    }

    question: NotBlank | NonEmpty[NotBlank]
    context: NotBlank | NonEmpty[NotBlank] = Field(description="Of any length.")
    top_k: Annotated[int, Field(ge=1, le=MAX_ANSWERS), whole(1, MAX_ANSWERS)] = Field(
        1,
        description="Maximum number of answers: the best, then alternatives. At most `n_best` of the model's "
        "task.json (20 by default) are returned. Scores do not depend on it.",
    )
    max_answer_tokens: AnswerTokens | None = Field(
        None, description="Longest answer, in the model's tokens. Default: what the model was tuned with."
    )
    no_answer_threshold: Share | None = Field(
        None,
        description="Null is answered where `no_answer_score` is over this; with 1 only where the context has no token. "
        "Default: the model's own rule, tuned on development data. Only for models that were trained on questions without "
        "an answer.",
    )
    model: ModelName = None


@complete
class SpanResult(TypedDict):
    """An answer: context[start:end], in Unicode code points."""

    answer: str
    score: float
    start: int
    end: int


@complete
class QaResult(TypedDict):
    """The best answer; `answer`, `start` and `end` are null if the context has none."""

    answer: str | None
    score: Annotated[
        float,
        Field(description="Probability of the returned answer (or of no answer) among the best candidates."),
    ]
    start: int | None
    end: int | None
    no_answer_score: float
    alternatives: list[SpanResult]


class Qa(ServedTask[QaRequest]):
    """Answer questions from their contexts."""

    path, model_task = "/qa", "qa"
    request, result = QaRequest, QaResult
    order = "One result for each question, in order."
    texts, more = ("question", "context"), "alternatives"
    example = response_example(
        "qa",
        27,
        {
            "answer": "Warsaw",
            "score": 0.995,
            "start": 24,
            "end": 30,
            "no_answer_score": 2.3e-07,
            "alternatives": [],
        },
    )

    async def run(self, call: Call, request: QaRequest) -> Results:
        """Answer a request."""
        question, context = Texts.of("question", request.question), Texts.of("context", request.context)
        call.check_count(question, context)
        if request.no_answer_threshold is not None:
            check_allows_no_answer(call.model, request.no_answer_threshold)
        found = await answers(
            call,
            question,
            context,
            top_k=request.top_k,
            max_answer_tokens=request.max_answer_tokens,
            no_answer_threshold=request.no_answer_threshold,
        )
        return Results(sum(1 + len(each.alternatives) for each in found), lambda _: map(_row, found))


def _row(found: Answer) -> QaResult:
    return {
        "answer": found.answer,
        "score": found.score,
        "start": found.start,
        "end": found.end,
        "no_answer_score": found.no_answer_score,
        "alternatives": [span_result(span) for span in found.alternatives],
    }


def span_result(span: spans.Span) -> SpanResult:
    """Return the result of a span."""
    return {"answer": span.text, "score": span.score, "start": span.start, "end": span.end}


async def answers(
    call: Call,
    question: Texts,
    context: Texts,
    *,
    top_k: int,
    max_answer_tokens: int | None,
    no_answer_threshold: float | None = None,
) -> list[Answer]:
    """Answer each question from its context; long contexts are read in windows."""
    check_not_blank(question, context)
    count, spec = pair_count(question, context), call.model.spec
    bounded = call.tokenizer()
    with call.context.timed("tokenize"):
        windows = await question_windows(bounded, call.model, question, context, count)
    logits = await call.infer_windows(windows)
    passages = [context.values[context.index(i)] for i in range(count)]

    def decode() -> list[Answer]:
        ends = {passage: MarkEnds(passage) for passage in dict.fromkeys(context.values)}
        limits = spec, top_k, max_answer_tokens, no_answer_threshold
        found = [
            spans.decode(passage, windows[i], logits[i], *limits, ends[passage])
            for i, passage in enumerate(passages)
        ]
        shown = (span for each in found for span in (each.span, *each.alternatives) if span is not None)
        call.note_size(context, spans_size(shown))
        return found

    found = await call.decode(count * top_k, decode, context)
    call.note_outcomes(("no_answer" if each.answer is None else "answer", each.score) for each in found)
    call.sample(lambda: (_sampled(call, question, passages[i], i, each) for i, each in enumerate(found)))
    return found


def _sampled(call: Call, question: Texts, context: str, index: int, found: Answer) -> dict[str, object]:
    answers = [{"text": found.span.text, "answer_start": found.span.start}] if found.span is not None else []
    row = {"id": f"{call.context.request_id}-{index}", "question": question.values[question.index(index)]}
    scores = {"score": found.score, "no_answer_score": found.no_answer_score}
    return {**row, "context": context, "answers": answers, **scores}


async def question_windows(
    bounded: BoundedTokenizer, model: Model, question: Texts, context: Texts, count: int
) -> list[list[Window]]:
    """Return the windows of `count` questions with their contexts.

    Raises InvalidRequestError for a question over the model's limit: questions are never cut.
    """
    spec = model.spec
    distinct = {value: i for i, value in enumerate(dict.fromkeys(context.values))}
    found = await bounded.pieces([*question.values, *distinct])
    questions, read = found[: len(question)], found[len(question) :]
    bounded.note_unknown(questions, question.where)
    first = {distinct[value]: i for i, value in reversed([*enumerate(context.values)])}
    bounded.note_unknown(read, lambda index: context.where(first[index]))
    contexts = [read[distinct[value]] for value in context.values]

    def pieces_of(index: int) -> tuple[Pieces, Pieces]:
        return questions[question.index(index)], contexts[context.index(index)]

    def tokens_of(index: int) -> int:
        asked, told = pieces_of(index)
        if len(asked) > spec.max_question_tokens:
            raise InputError(
                f"the question has {len(asked)} tokens and may have {spec.max_question_tokens} (max_question_tokens "
                "of the model), special ones not counted"
            )
        around = len(asked) + model.tokenizer.form.special_tokens(2)
        return window_tokens(len(told), spec.max_tokens, spec.stride, around)

    def windows_of(index: int) -> list[Window]:
        return qa.encode(model.tokenizer, *pieces_of(index), spec)

    bounded.check_tokens(sum(make_each(count, tokens_of, question.where)))
    return await bounded.build(count, lambda: make_each(count, windows_of, question.where))


def check_allows_no_answer(model: Model, threshold: float) -> None:
    """Refuse a threshold for no answer where the model always gives one."""
    if not model.spec.allows_no_answer:
        message = (
            f"is {threshold:g}, but model {model.name!r} was not trained on questions without an answer and always gives "
            "one: leave it out"
        )
        raise InvalidRequestError([FieldError("no_answer_threshold", message)])
