"""Messages between the processes of a service are read as they were written."""

from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
import pytest

from bert import errors
from bert.bundle import read_bundle
from bert.errors import (
    DeadlineExceededError,
    EngineError,
    InputError,
    LoadError,
    ModelLeftOutError,
    ModelReplacedError,
    NoDefaultModelError,
    NotReadyError,
    OutOfMemoryError,
    QueueFullError,
    RateLimitedError,
    RequestTooLargeError,
    ServiceError,
    TooLateError,
    UnknownModelError,
)
from bert.tasks import fill_mask, qa
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Encoding, Tokenizer
from service.engine.models import Floats
from service.engine.onnx_engine import OnnxEngine
from service.http.problems import problem_of
from service.scheduling.scheduler_protocol import SubmitResult
from service.workers import messages
from service.workers.messages import (
    Cancel,
    Done,
    Failed,
    Health,
    Hello,
    Managed,
    ManageModel,
    Message,
    Started,
    Submit,
    Taken,
)
from tests.support.tiny import SPECS, tiny_tokenizer

Sent = TypeVar("Sent", bound=Message)
EXAMPLES: list[Message] = [
    Hello(
        16_384,
        {"mood": 128, "北京": 64},
        {"mood": "classification", "北京": "ner"},
        {"mood": "a" * 64, "北京": "b" * 64},
        {"classification": "mood"},
        [("bundles/mood", "{}", b"\x00\xff", "", b"{}", b"")],
        [("torn", "", "no manifest")],
        unloaded=[("names", "ner", "unloaded")],
        failed=[("mood", "classification", "damaged")],
        number=2**62 + 1,
    ),
    Health(["mood", "names"], {"mood": 1.5}),
    Taken(2**62 + 1, ["mood@1f2e"]),
    ManageModel(2**62 + 1, "load", "北京"),
    Managed(2**62 + 1),
    Submit(2**62 + 1, "mood", float("inf"), [3, 1], 2, bytes(range(32)), lane="web", share=0.5),
    Cancel(2**62 + 1),
    Started(2**62 + 1),
    Done(7, [1, 0, 2], (2, 5), bytes(120), 0.125, 3e-5),
    Failed(7, "QueueFullError", ("full",), {"retry_after_s": 0.5, "known": ("a", "b")}),
]
ERRORS: list[ServiceError] = [
    ServiceError("something"),
    UnknownModelError("nope", ["mood", "names"]),
    NoDefaultModelError("qa", ["mood"]),
    RequestTooLargeError(900, 100),
    ModelLeftOutError("mood"),
    ModelReplacedError("mood"),
    LoadError("bundles/mood is damaged"),
    QueueFullError(900, 1000, 2.5),
    TooLateError(900, 1000, 2.5, 31.0, 29.5, tokens_per_s=1234.5, sizes=(512.0, float("inf"))),
    RateLimitedError("web", "10 requests in progress", 0.5, 10),
    DeadlineExceededError(1500.0),
    NotReadyError("the service is stopping"),
    EngineError("the model gave a number that is not finite"),
    OutOfMemoryError(4096),
]
TEXTS = ["a warm film", "", "where is paris", "the " * 40, "北京 merkelx", "how long is it"]
QUESTION = "who met angela"


def carried(message: Sent) -> Sent:
    """Write a message and read it."""
    read = messages.read(messages.write(message))
    assert type(read) is type(message)
    return read


def read_by(tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    """Return TEXTS as the service reads them for a task: some are cut, some become windows."""
    limit = spec.max_tokens
    pieces = tokenizer.pieces(TEXTS, only_ids=spec.task in ("classification", "similarity"))
    match spec.task:
        case "fill_mask":
            masked = fill_mask.pieces(tokenizer, ["[MASK]", "a [MASK] film [MASK]", "merkelx[MASK] is 北京"])
            return [fill_mask.encode(tokenizer, text, limit) for text in masked]
        case "ner":
            return [w.encoding for text in pieces for w in tokenizer.windows(text, limit, spec.stride)]
        case "qa":
            (question,) = tokenizer.pieces([QUESTION])
            return [w.encoding for text in pieces for w in qa.encode(tokenizer, question, text, spec)]
    if spec.pair or spec.task == "multiple_choice":
        return [tokenizer.pair(pieces[0], text, limit, truncate=True) for text in pieces]
    return [tokenizer.single(text, limit, truncate=True) for text in pieces]


def outputs(*shapes: tuple[int, ...]) -> list[Floats]:
    generator = np.random.default_rng(1)
    return [generator.normal(0, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_of_each_kind_is_read_as_it_was_written(message: Message) -> None:
    assert carried(message) == message
    assert messages.read(memoryview(messages.write(message))) == message


def test_the_examples_are_of_all_kinds_of_messages_and_errors() -> None:
    assert {type(message) for message in EXAMPLES} == set(get_args(Message))
    known = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert {type(error) for error in ERRORS} == {kind for kind in known if issubclass(kind, ServiceError)}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_engine_makes_the_same_of_encodings_that_were_carried(bundles: Path, name: str) -> None:
    bundle = read_bundle(bundles / name)
    task = bundle.manifest.task.task
    sent = read_by(Tokenizer.load(bundle.tokenizer_path), bundle.manifest.task)
    message = carried(Submit.of(5, name, task, 12.5, sent))
    assert (message.key, message.model, message.deadline) == (5, name, 12.5)
    assert message.columns == (4 if TASKS[task].reads_words else 2)
    got = message.encodings()
    for one, other in zip(sent, got, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.segment_ids.tolist() == other.segment_ids.tolist()
        assert TASKS[task].head_positions(one).tolist() == TASKS[task].head_positions(other).tolist()
    engine = OnnxEngine(bundle, 1)
    for here, there in zip(engine.run(sent).texts, engine.run(got).texts, strict=True):
        assert np.array_equal(here, there)


def test_the_vectors_of_labels_are_carried_once_for_all_texts_of_a_set() -> None:
    tokenizer, vectors = tiny_tokenizer(), np.arange(12, dtype=np.float32).reshape(3, 4)
    sent = [tokenizer.single(pieces) for pieces in tokenizer.pieces(["a film", "a", "the film"])]
    for encoding, each in zip(sent, (vectors, vectors[1:] + 1, vectors), strict=True):
        encoding.label_vectors = each
    message = Submit.of(1, "m", "open_ner", 0.0, sent)
    assert len(message.label_vectors) == (3 + 2) * 4 * 4
    one, other, third = (encoding.label_vectors for encoding in carried(message).encodings())
    assert one is not None and one is third and other is not None
    assert np.array_equal(one, vectors) and np.array_equal(other, vectors[1:] + 1)


def test_the_starts_of_chunks_are_carried() -> None:
    (sent,) = (tiny_tokenizer().single(pieces) for pieces in tiny_tokenizer().pieces(["a film was long"]))
    sent.chunk_starts = np.array([0, 3], np.int32)
    (got,) = carried(Submit.of(1, "m", "similarity", 0.0, [sent])).encodings()
    assert TASKS["similarity"].head_positions(got).tolist() == [0, 3]


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_head_looks_at_the_same_tokens_of_what_was_carried(bundles: Path, task: str) -> None:
    tokenizer = Tokenizer.load(read_bundle(bundles / "gaps").tokenizer_path)
    sent = [tokenizer.single(text) for text in fill_mask.pieces(tokenizer, ["a [MASK] merkelx", "[MASK]"])]
    got = carried(Submit.of(1, "m", task, 0.0, sent)).encodings()
    for one, other in zip(sent, got, strict=True):
        assert TASKS[task].head_positions(one).tolist() == TASKS[task].head_positions(other).tolist()


@pytest.mark.parametrize("task", sorted(name for name, task in TASKS.items() if not task.reads_words))
def test_words_that_nobody_asks_for_are_not_worked_out(bundles: Path, task: str) -> None:
    tokenizer = Tokenizer.load(read_bundle(bundles / "mood").tokenizer_path)
    (encoding,) = [tokenizer.single(pieces) for pieces in tokenizer.pieces(["a film"], only_ids=True)]
    Submit.of(1, "m", task, 0.0, [encoding])
    assert encoding._word_ids is None


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 2)],
        [(7, 5), (1, 5), (30, 5)],
        [(1, 32), (1, 32)],
        [(3, 2, 100), (1, 2, 100)],
        [(4, 5), (0, 5), (2, 5), (0, 5)],
        [(0, 5)],
    ],
    ids=str,
)
def test_outputs_of_every_shape_are_carried(shapes: list[tuple[int, ...]]) -> None:
    sent = SubmitResult(outputs(*shapes), 0.25, 1.5)
    got = carried(Done.of(3, sent)).result()
    assert (got.queue_s, got.inference_s) == (0.25, 1.5)
    for one, other in zip(sent.outputs, got.outputs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.array_equal(one, other)


def test_numbers_are_carried_to_the_bit() -> None:
    odd = np.array([[np.nan, -0.0, np.inf, 1e-45, 3.4028235e38]], np.float32)
    (got,) = carried(Done.of(3, SubmitResult([odd], 0.0, 0.0))).result().outputs
    assert got.tobytes() == odd.tobytes()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_service_is_answered_as_where_it_was_raised(error: ServiceError) -> None:
    got = carried(Failed.of(9, error)).error()
    assert type(got) is type(error)
    assert (str(got), got.args, vars(got)) == (str(error), error.args, vars(error))
    here, there = problem_of(error), problem_of(got)
    assert (there.status, there.code, there.detail) == (here.status, here.code, here.detail)
    assert (there.headers, there.errors, there.reason) == (here.headers, here.errors, here.reason)


class UnlistedError(ServiceError):
    """Not one of bert.errors."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("poisoned"),
        KeyError("mood"),
        InputError("a text"),
        OSError(28, "No space left on device"),
        UnlistedError("of another module"),
    ],
    ids=repr,
)
def test_any_other_error_is_one_of_the_engine(error: Exception) -> None:
    got = carried(Failed.of(9, error)).error()
    assert type(got) is EngineError
    assert str(got) == f"the engine failed: {error!r}"


def test_a_process_without_memory_asks_to_come_again() -> None:
    got = carried(Failed.of(9, MemoryError())).error()
    assert type(got) is NotReadyError and "no memory left" in str(got)


def test_an_error_is_carried_without_what_caused_it() -> None:
    error = EngineError("the graph failed")
    error.__cause__ = ValueError(object())
    got = carried(Failed.of(9, error)).error()
    assert (str(got), got.__cause__) == ("the graph failed", None)
