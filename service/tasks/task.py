"""What a task is to the interfaces of the service: HTTP, JSON lines, the other APIs, bulk.

`service.tasks.table` lists the tasks.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import orjson
from numpy.typing import NDArray
from pydantic import create_model

from bert.errors import (
    QUEUE_RULE,
    FieldError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLargeError,
    displayed,
)
from bert.graph_inputs import joined
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors.similarity import first_numbers
from bert.tasks.vectors.token_vectors import SIDES
from bert.tasks.vectors.token_vectors import encode as encode_side
from bert.tokenizer import Encoding, Window
from service.engine.models import Floats, Model, Registry
from service.pipeline.chunks import check_chunks, chunk_starts
from service.pipeline.inputs import (
    RequestContext,
    Rows,
    TextLists,
    Texts,
    check_count,
    make_each,
    pair_count,
)
from service.pipeline.pipeline import INLINE_TOKENS, BoundedTokenizer, Pipeline, is_short_text
from service.tasks.schema import RESULT_BYTES, Example, Item, Schema, TaskResponse

Request = TypeVar("Request", bound=Schema)
Result = TypeVar("Result")
INLINE_RESULTS = 500
"""Maximum results (labels, answers, similarities) decoded and serialised on the event loop, within 2 ms."""
PART = 16
"""List items that are serialised in one call, which holds the interpreter's lock."""
NUMBER_BYTES = 12
"""Bytes of one number of a vector in JSON, about."""
FLOAT_BYTES = 4
"""Bytes of a float32."""
MAX_COUNTED_LABELS = 200
"""Most labels of a model that are counted by name; each is a series in the metrics."""
LONG_CHARACTERS = 2**15
"""Length from which a text is serialised in a call of its own, in characters."""


class ListItems(Protocol):
    """Makes the lists inside a result: `in_parts` for JSON, `_plain` of `service.bulk.tasks` for Python."""

    def __call__(self, items: Iterable[Item], size: int = PART) -> list[Item]:
        """Return the items as a list, or as what stands for one in JSON; `size` of them are serialised in one call."""
        ...


def to_json(value: object) -> bytes:
    """Serialise a value; float32 arrays as the shortest numbers that read back equal.

    A number that is not finite becomes null; the scheduler raises an error for those.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def in_parts(items: Iterable[Item], size: int = PART) -> list[Item]:
    """Return the items as a list, or, if there are `size` or more, as JSON that was serialised in parts.

    Items are what `to_json` takes: dicts, dataclasses with the fields of the result, numbers, vectors.
    """
    if isinstance(items, list) and len(items) < size:
        return items
    left = iter(items)
    part = list(islice(left, size))
    if len(part) < size:
        return part
    parts = list[bytes]()
    while part:
        parts.append(to_json(part)[1:-1])
        part = list(islice(left, size))
    return cast(list[Item], orjson.Fragment(b"[" + b",".join(parts) + b"]"))


@dataclass(slots=True)
class Call:
    """One request to one model: the steps of which every task is made."""

    pipeline: Pipeline
    context: RequestContext
    model: Model
    needs_json: bool = False
    """The response has to be JSON: it is a line of many, or a part of another API's."""

    def check_count(self, *fields: Texts) -> None:
        """Raise InvalidRequestError for no text, or for too many in all fields together."""
        check_count(self.pipeline.max_texts, *fields)

    def tokenizer(
        self,
        *,
        only_ids: bool = False,
        most_tokens: int = sys.maxsize,
        limit_rule: str = QUEUE_RULE,
        for_engine: bool = True,
    ) -> BoundedTokenizer:
        """Return the tokenizer of this request, which stops at `most_tokens` and at what can ever be queued.

        `only_ids` leaves out where each piece lies in its text. Raises QueueFullError if the engine, which gets the result
        unless `for_engine` is false, should refuse it.
        """
        if for_engine:
            context = self.context
            early = self.pipeline.early_refusal
            early.enter(self.model.id, context.body_bytes, context.deadline, context.key)
        limit = min(self.pipeline.scheduler.max_tokens, most_tokens)
        return BoundedTokenizer(
            self.context, self.model.tokenizer, limit, self.pipeline.threads, only_ids, limit_rule
        )

    async def encode(self, text: Texts, pair: Texts | None = None, *, truncate: bool) -> list[Encoding]:
        """Encode texts, or pairs of them.

        Raises what `BoundedTokenizer.pieces` does, and InvalidRequestError for texts over the model's length.
        """
        if pair is None:
            return await self.encode_each(text, truncate=truncate)
        tokenizer, limit, count = self.model.tokenizer, self.model.spec.max_tokens, pair_count(text, pair)
        bounded = self.tokenizer(only_ids=True)
        with self.context.timed("tokenize"):
            found = await bounded.pieces([*text.values, *pair.values], limit if truncate else None)
            bounded.note_unknown(found, names(text, pair))
            first, second = found[: len(text)], found[len(text) :]

            def encode(index: int) -> Encoding:
                pieces = first[text.index(index)], second[pair.index(index)]
                return tokenizer.pair(*pieces, limit, truncate=truncate)

            def name(index: int) -> str:
                return f"{text.where(index)} with {pair.where(index)}"

            return await bounded.build(count, lambda: make_each(count, encode, name))

    async def encode_each(self, *fields: Texts, truncate: bool) -> list[Encoding]:
        """Encode the texts of several fields, each by itself. Raises as `encode` does."""
        tokenizer, limit, name = self.model.tokenizer, self.model.spec.max_tokens, names(*fields)
        values = [value for field in fields for value in field.values]
        bounded = self.tokenizer(only_ids=True)
        with self.context.timed("tokenize"):
            found = await bounded.pieces(values, limit if truncate else None)
            bounded.note_unknown(found, name)

            def encode(index: int) -> Encoding:
                return tokenizer.single(found[index], limit, truncate=truncate)

            return await bounded.build(len(values), lambda: make_each(len(values), encode, name))

    async def encode_with_each(
        self, text: Texts, beside: TextLists, count: int, *, truncate: bool, keep_beside: bool = False
    ) -> list[list[Encoding]]:
        """Encode each of `count` texts with each of those that belong to it. Raises as `encode` does.

        With `keep_beside` the texts alone are cut.
        """
        tokenizer, limit = self.model.tokenizer, self.model.spec.max_tokens
        bounded, others = self.tokenizer(only_ids=True), [each for texts in beside.lists for each in texts]
        with self.context.timed("tokenize"):
            found = await bounded.pieces([*text.values, *others], limit if truncate else None)
            first, rest = found[: len(text)], iter(found[len(text) :])
            places = beside.places()
            bounded.note_unknown(first, text.where)
            bounded.note_unknown(found[len(text) :], lambda index: beside.where(*places[index]))
            lists = [[next(rest) for _ in texts] for texts in beside.lists]
            rows = [(item, number) for item in range(count) for number in range(len(beside.of_item(item)))]

            def encode(row: int) -> Encoding:
                item, number = rows[row]
                pair = first[text.index(item)], lists[beside.index(item)][number]
                return tokenizer.pair(*pair, limit, truncate=truncate, keep_second=keep_beside)

            def name(row: int) -> str:
                item, number = rows[row]
                return f"{text.where(item)} with {beside.where(item, number)}"

            encodings = iter(await bounded.build(len(rows), lambda: make_each(len(rows), encode, name)))
        return [[next(encodings) for _ in beside.of_item(item)] for item in range(count)]

    async def infer(self, encodings: Sequence[Encoding]) -> list[Floats]:
        """Run encodings through the scheduler; raises RequestTooLargeError if they could never be queued."""
        context, scheduler, model = self.context, self.pipeline.scheduler, self.model.id
        context.lengths = [len(encoding) for encoding in encodings]
        context.tokens = sum(context.lengths)
        context.truncated = sum(encoding.truncated for encoding in encodings)
        if context.tokens > scheduler.max_tokens:
            raise RequestTooLargeError(context.tokens, scheduler.max_tokens)
        early = self.pipeline.early_refusal
        early.learn(model, context.body_bytes, context.tokens)
        if context.grant is not None:
            context.grant.spend(context.tokens)
        try:
            with context.timed("queue"):  # all the time, of a request that gets no outputs
                result = await scheduler.submit(model, encodings, context.deadline, lane=context.lane)
        except QueueFullError as error:
            early.note(model, context.tokens, context.seconds.get("tokenize", 0.0), error, context.key)
            if context.grant is not None:
                context.grant.refund(context.tokens)
            raise
        early.forget(model, context.tokens, result.queue_s, context.key)
        context.note_engine(result.queue_s, result.inference_s)
        return result.outputs

    async def infer_windows(self, windows: Sequence[Sequence[Window]]) -> list[list[Floats]]:
        """Run the windows of several texts as one job; return the outputs by text."""
        encodings = [window.encoding for text in windows for window in text]
        outputs = iter(await self.infer(encodings) if encodings else [])
        self.context.lengths = [sum(len(window.encoding) for window in text) for text in windows]
        return [[next(outputs) for _ in text] for text in windows]

    async def decode(self, results: int, function: Callable[[], Result], text: Texts | None = None) -> Result:
        """Decode outputs to about `results` results, in a thread if that takes long.

        `text` is what the results point into.
        """
        with self.context.timed("decode"):
            is_short = text is None or is_short_text(text.values)
            if is_short and self.context.tokens < INLINE_TOKENS and results <= INLINE_RESULTS:
                return function()
            return await self.pipeline.run_in_thread(function)

    def note_outcomes(self, outcomes: Iterable[tuple[str, float]]) -> None:
        """Note the labels and scores of the results, for the metrics; of a model of very many labels without their names."""
        if len(self.model.spec.labels) > MAX_COUNTED_LABELS:
            outcomes = (("other", score) for _, score in outcomes)
        self.context.outcomes = list(outcomes)

    def sample(self, rows: Rows) -> None:
        """Keep the texts and results of this request, if it is one of the sampled."""
        if self.context.sample is not None:
            about = {"version": self.context.version, "request_id": self.context.request_id}
            self.context.sample(self.model.name, about, rows)

    def note_size(self, text: Texts, size: int) -> None:
        """Note the size of the response in bytes; raises InvalidRequestError, which names `text`, if it is too large."""
        self.context.response_bytes = size
        if size > self.pipeline.max_response_bytes:
            message = (
                f"the response would take up to {size} bytes, and one may take {self.pipeline.max_response_bytes} "
                "(max_response_bytes): ask for fewer results, or send the texts in several requests"
            )
            raise InvalidRequestError([FieldError(text.name, message)])


def names(*fields: Texts) -> Callable[[int], str]:
    """Return the function that names a text by its index in all fields together."""

    def name(index: int) -> str:
        for texts in fields:
            if index < len(texts):
                return texts.where(index)
            index -= len(texts)
        raise IndexError(index)

    return name


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors (N, E) of texts, in numbers of any type, and which texts were cut."""

    vectors: NDArray[Any]
    truncated: list[bool]
    counts: Sequence[int] = ()
    """Number of vectors of each text; none where each has one."""


async def embed(
    call: Call, *fields: Texts, truncate: bool, dimensions: int | None = None, shown: bool = True
) -> Embedded:
    """Return a vector for each text of the first field, then of the next: its first `dimensions` numbers, or all.

    Without `shown` the vectors are only compared: the response does not hold them, and its size is not noted.
    """
    model = call.model
    check_dimensions(model, dimensions)
    if shown:
        numbers = dimensions or model.embedding_size or 0
        call.note_size(fields[0], sum(map(len, fields)) * (RESULT_BYTES + numbers * NUMBER_BYTES))
    encodings = await call.encode_each(*fields, truncate=truncate)
    vectors = joined(await call.infer(encodings))
    if dimensions is not None:
        vectors = first_numbers(vectors, dimensions, model.spec)
    return Embedded(vectors, [encoding.truncated for encoding in encodings])


async def embed_chunks(
    call: Call,
    chunks: Texts,
    prompt_name: str | None = None,
    *,
    truncate: bool = False,
    dimensions: int | None = None,
) -> Embedded:
    """Return a vector for each of the texts, which are a document's chunks in their order, with nothing between them.

    A token belongs to the chunk in which it begins, [CLS] and the prompt to the first one, [SEP] to the last. Raises
    InvalidRequestError for a document over the model's length, a chunk without a token, and a model that cannot do it.
    """
    model = call.model
    check_chunks(model, truncate=truncate)
    check_dimensions(model, dimensions)
    numbers = dimensions or model.embedding_size or 0
    call.note_size(chunks, len(chunks) * (RESULT_BYTES + numbers * NUMBER_BYTES))
    text = "".join(chunks.values)
    document = prompted(Texts(chunks.name, [text], False), model, prompt_name)
    prompt = len(document.values[0]) - len(text)
    (encoding,) = await call.encode_each(document, truncate=False)
    encoding.chunk_starts = await call.pipeline.run_in_thread(lambda: chunk_starts(encoding, chunks, prompt))
    (vectors,) = await call.infer([encoding])
    if dimensions is not None:
        vectors = first_numbers(vectors, dimensions, model.spec)
    return Embedded(vectors, [False] * len(chunks))


def prompted(texts: Texts, model: Model, name: str | None, field: str = "prompt_name") -> Texts:
    """Return the texts with the model's prompt of that name before each; None takes the model's default, "" none.

    Raises InvalidRequestError for a name that the model does not have.
    """
    prompts = model.spec.prompts
    name = model.spec.default_prompt_name if name is None else name
    if not name:
        return texts
    if name not in prompts:
        known = f"its prompts are {', '.join(prompts)}" if prompts else "it has none"
        raise InvalidRequestError(
            [FieldError(field, f"model {model.name!r} has no prompt {name!r}; {known}")]
        )
    return replace(texts, values=[prompts[name] + value for value in texts.values])


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Vectors (T, D) of each text's tokens, and which texts were cut."""

    vectors: Sequence[Floats]
    truncated: list[bool]


async def embed_tokens(
    call: Call, *fields: tuple[Texts, str], truncate: bool, number_bytes: float | None = None
) -> TokenVectors:
    """Return the vectors of the texts of each field, which are queries or documents as its side says.

    `number_bytes` are those of a number in the response; None where the vectors are only compared. Raises what
    `Call.encode` does, and InvalidRequestError for more bytes than a response may take: before anything is queued.
    """
    spec, tokenizer = call.model.spec, call.model.tokenizer
    texts = [prompted(text, call.model, side if side in spec.prompts else "") for text, side in fields]
    sides = [SIDES[side] for text, side in fields for _ in text.values]
    values, name = [value for text in texts for value in text.values], names(*(text for text, _ in fields))
    bounded = call.tokenizer(only_ids=True)
    with call.context.timed("tokenize"):
        found = await bounded.pieces(values, spec.max_tokens if truncate else None)
        bounded.note_unknown(found, name)

        def one(index: int) -> Encoding:
            return encode_side(found[index], sides[index], tokenizer, spec, truncate=truncate)

        encodings = await bounded.build(len(values), lambda: make_each(len(values), one, name))
    numbers = sum(int((each.word_ids >= 0).sum()) for each in encodings) * (call.model.embedding_size or 0)
    if number_bytes is not None:
        call.note_size(texts[0], len(values) * RESULT_BYTES + round(numbers * number_bytes))
    elif (size := numbers * FLOAT_BYTES) > (most := call.pipeline.max_response_bytes):
        message = f"the vectors of all tokens take {size} bytes, and they may take {most} (max_response_bytes): send fewer"
        raise InvalidRequestError([FieldError(fields[-1][0].name, message)])
    return TokenVectors(await call.infer(encodings), [each.truncated for each in encodings])


def check_dimensions(model: Model, dimensions: int | None, field: str = "dimensions") -> None:
    """Refuse more numbers than the model's vectors have, and fewer than one; the error names `field`."""
    size = model.embedding_size or 0
    if dimensions is not None and not 1 <= dimensions <= size:
        message = (
            f"is {displayed(str(dimensions))}, and model {model.name!r} gives {size}: ask for 1 to {size}"
        )
        raise InvalidRequestError([FieldError(field, message)])


@dataclass(slots=True)
class Results:
    """The results of a request; their JSON is made while the response is written."""

    count: int
    """Number of labels, answers or scores in them, about, which says how long writing takes."""
    rows: Callable[[ListItems], Iterable[Mapping[str, Any]]]
    """Makes the results, in the order of the request."""
    max_inline: int = INLINE_RESULTS
    """Most of them that are written on the event loop."""
    is_lazy: bool = False
    """Outputs are decoded while the rows are made."""
    file: Embedded | None = None
    """Vectors that are sent as a NumPy file, in place of the rows."""


class ServedTask(ABC, Generic[Request]):
    """A task: its request, its results, and what the interfaces need. The class's docstring describes the endpoint."""

    path: str
    """Path of its endpoint."""
    model_task: str | None
    """Task of the models that do it; None where `find` decides."""
    other_tasks: tuple[str, ...] = ()
    """Further tasks of models that do it; `find` chooses among them."""
    request: type[Request]
    result: Any
    """TypedDict of one result."""
    order: str
    """Description of the response: its results and their order."""
    example: Example
    """A response, which is what the demo model answers to the example of the request."""
    texts: tuple[str, ...] = ("text",)
    """Fields of texts."""
    more: str = ""
    """Column of results that lists others than the best; bulk prediction has it on demand."""
    by_row: bool = True
    """Each text, or each set of texts of all fields, has one result."""
    has_file: bool = False
    """A response may be a NumPy file."""
    form: str = ""
    """Field of the request that chooses how its results are written."""
    needs_engine: ClassVar[bool] = True
    """The engine runs its requests; else they are only tokenised."""
    probe: ClassVar[dict[str, Any]] = {}
    """A short value for each field for which the text "a" will not do."""

    def __init__(self) -> None:
        """Make the schema of the response."""
        name = f"{self.request.__name__.removesuffix('Request')}Response"
        self.name = self.path.strip("/").replace("-", "_")
        results: Any = list[self.result]  # type: ignore[name-defined]
        self.response: type[TaskResponse] = create_model(
            name, __base__=TaskResponse, __doc__=self.order, results=(results, ...)
        )

    @abstractmethod
    async def run(self, call: Call, request: Request) -> Results:
        """Answer a request with a model that `find` returned."""

    def find(self, registry: Registry, name: str | None, request: Request) -> Model:
        """Return the model of the name in a request, or the default one. Raises what `Registry.find` does."""
        if name is not None and self.other_tasks and registry.find(name, None).task in self.other_tasks:
            return registry.find(name, None)
        return registry.find(name, self.model_task)

    def fields(self, spec: TaskSpec) -> tuple[str, ...]:
        """Return the fields of texts that a model reads; of a model that reads pairs or single texts, both."""
        return self.texts

    def fields_among(
        self, spec: TaskSpec, given: Collection[str], options: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return the fields that a model reads where these fields and options are given."""
        names = self.fields(spec)
        return names[:1] if spec.pair is None and names[-1] not in given else names

    @property
    def model_tasks(self) -> tuple[str, ...]:
        """Return the tasks of the models that do it; none where every model may."""
        return () if self.model_task is None else (self.model_task, *self.other_tasks)

    @property
    def has_plain_texts(self) -> bool:
        """Tell whether its fields of texts take lists of texts, and no lists of such lists."""
        return self.request.nested.isdisjoint(self.texts)

    @property
    def options(self) -> list[str]:
        """Return the fields of a request beside its texts, its model and the form of its results."""
        others = {*self.texts, "model", self.form}
        return [name for name in self.request.model_fields if name not in others]

    def examples_of(self, spec: TaskSpec) -> Sequence[Example]:
        """Return requests that fit a model, its own or those made for its labels; none where the task's own do."""
        return spec.examples

    def example_of(self, spec: TaskSpec) -> Example:
        """Return an example of a request to a model."""
        return next(iter(self.examples_of(spec)), self.request.example)

    def lacks(self, spec: TaskSpec) -> Collection[str]:
        """Return the fields of a result that a model does not give."""
        return ()

    def shows_more(self, spec: TaskSpec, options: Collection[str]) -> bool:
        """Tell whether bulk prediction has the column `more`, where these options are given."""
        return "top_k" in options


def response_example(model: str, tokens: int, *results: Example) -> Example:
    """Return a response as the OpenAPI document shows it."""
    return {"model": model, "results": list(results), "usage": {"tokens": tokens}}
