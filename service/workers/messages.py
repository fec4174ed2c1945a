"""Messages between frontends and the engine process, their encoding, and the connection that carries them.

A message is a tuple of plain values, written with `marshal`: both ends are this code on this Python, and reading one runs
nothing. N sequences of T tokens in all.
"""

import asyncio
import itertools
import json
import marshal
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np

from bert import errors
from bert.bundle import Bundle
from bert.errors import EngineError, NotReadyError, ServiceError
from bert.graph_inputs import joined, split
from bert.manifest import Manifest
from bert.tasks.registry import TASKS
from bert.tokenizer import Encoding
from service.engine.models import Floats, Model, SkippedBundle
from service.scheduling.fair_queue import NO_LANE, Lane
from service.scheduling.scheduler_protocol import ServedModels, SubmitResult

MAX_RETRIES = 2
"""Engine processes that a request is sent to after the first one ended."""
_SIZE = struct.Struct("<I")
"""Length of a message in bytes, sent before it."""
_NO_OFFSETS = np.zeros((0, 2), np.int32)
"""Offsets stay in the frontend, which decodes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Engine to frontend: the models that are served, at first and whenever that changes."""

    max_tokens: int
    budgets: dict[str, int]
    """Id of each model → tokens of a batch."""
    tasks: dict[str, str]
    """Id → task."""
    origins: dict[str, str]
    """Id → hash of its checkpoint, tokenizer and task."""
    defaults: dict[str, str] = field(default_factory=dict)
    bundles: list[tuple[str, str, bytes, str, bytes, bytes]] = field(default_factory=list)
    """Folder, manifest as JSON, `tokenizer.json`, `why_fallback` and the labels' tokenizer, or nothing, of each model, as
    read and checked by the engine process. A frontend reads no bundle, so the two cannot differ."""
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, task and reason of each bundle that is not served."""
    running_tokens: int = 0
    """Largest number of tokens in the engine, beside the `max_tokens` that wait."""
    first: str = ""
    """Name of the first bundle, which may be left out."""
    slots: int = 1
    """Batches in the engine at once."""
    unloaded: list[tuple[str, str, str]] = field(default_factory=list)
    """Models that were unloaded on request, as in `left_out`."""
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    """Bundles that could not be loaded while the service ran, as in `left_out`."""
    number: int = 0
    """Number of the change that led to it, in this engine process."""

    @classmethod
    def of(cls, served: ServedModels, number: int = 0) -> Self:
        """Describe the served models."""
        registry, models = served.registry, served.registry.models.values()
        return cls(
            served.scheduler.max_tokens,
            dict(served.budgets),
            {model.id: model.spec.task for model in models},
            {model.id: model.origin for model in models},
            dict(registry.defaults),
            [_sent(model) for model in models],
            [astuple(each) for each in registry.left_out],
            served.running_tokens,
            registry.first,
            served.slots,
            [astuple(each) for each in registry.unloaded],
            [astuple(each) for each in registry.failed],
            number,
        )

    @property
    def registry_lists(self) -> dict[str, list[SkippedBundle]]:
        """Fields of the registry that list bundles which are not served."""
        names = ("left_out", "unloaded", "failed")
        return {name: [SkippedBundle(*each) for each in getattr(self, name)] for name in names}

    def models(self, known: Iterable[Model] = ()) -> list[Model]:
        """Return the models, without their graphs; those `known` already are taken as they are."""
        same = {_sent(model): model for model in known}
        return [same.get(sent) or _received(*sent) for sent in self.bundles]


def _sent(model: Model) -> tuple[str, str, bytes, str, bytes, bytes]:
    """Return what is sent of a model."""
    manifest = json.dumps(model.bundle.manifest.to_dict())
    labels = model.labels.tokenizer_json if model.labels is not None else b""
    queries = b"" if model.query_weights is None else model.query_weights.tobytes()
    return str(model.bundle.folder), manifest, model.tokenizer_json, model.why_fallback, labels, queries


def _received(folder: str, manifest: str, *parts: Any) -> Model:
    bundle = Bundle(Path(folder), Manifest.from_dict(json.loads(manifest)))
    return Model.of(bundle, *parts)


@dataclass(frozen=True, slots=True)
class Health:
    """Engine to frontend, after Hello and every second: how the models run."""

    suspects: list[str]
    """Ids of the models that are suspected to be broken."""
    tokens_per_s: dict[str, float]
    """Id → throughput in full batches."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Frontend to engine: new requests go to the models of a Hello."""

    number: int
    """Number of that Hello."""
    held: list[str]
    """Ids of replaced models that requests still hold which have not been sent."""


@dataclass(frozen=True, slots=True)
class ManageModel:
    """Frontend to engine: load, unload or bring back a model."""

    key: int
    action: str
    name: str


@dataclass(frozen=True, slots=True)
class Managed:
    """Engine to frontend: that was done, and all frontends have taken it over."""

    key: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Frontend to engine: a request to run."""

    key: int
    """Identifier, unique in the service."""
    model: str
    """Id of the model."""
    deadline: float
    """Time on `time.monotonic`, which all processes of a machine share."""
    lengths: list[int]
    columns: int
    """2 for ids and segments, 4 with word and sequence ids."""
    tokens: bytes
    """int32 (columns, T)"""
    attempts: int = 0
    """Number of engine processes that ended while they had the request."""
    lane: str = ""
    share: float = 1.0
    """Name of the lane that it queues in, and that lane's share."""
    labels: list[int] = field(default_factory=list)
    """Number of labels in each set whose vectors it brings along."""
    sets: list[int] = field(default_factory=list)
    """Set of each sequence; none without labels."""
    label_vectors: bytes = b""
    """float32 (labels of all sets, D)"""
    chunk_starts: bytes = b""
    """int32 (chunks,): first tokens of the chunks of the one sequence, where they are pooled one by one."""

    @property
    def is_last_attempt(self) -> bool:
        """Tell whether the request is given up if the engine process ends on it once more."""
        return self.attempts >= MAX_RETRIES

    @classmethod
    def of(
        cls,
        key: int,
        model: str,
        task: str,
        deadline: float,
        encodings: Sequence[Encoding],
        lane: Lane = NO_LANE,
    ) -> Self:
        """Encode the columns that the engine reads for a task."""
        columns = [[e.ids for e in encodings], [e.segment_ids for e in encodings]]
        if TASKS[task].reads_words:
            columns += [[e.word_ids for e in encodings], [e.sequence_ids for e in encodings]]
        block = b"".join(
            [array.astype(np.int32, copy=False).tobytes() for column in columns for array in column]
        )
        vectors = {id(e.label_vectors): e.label_vectors for e in encodings if e.label_vectors is not None}
        numbers = {key: number for number, key in enumerate(vectors)}
        starts = encodings[0].chunk_starts
        return cls(
            key,
            model,
            deadline,
            lengths=[len(e) for e in encodings],
            columns=len(columns),
            tokens=block,
            lane=lane.name,
            share=lane.share,
            labels=[len(each) for each in vectors.values()],
            sets=[numbers[id(e.label_vectors)] for e in encodings] if vectors else [],
            label_vectors=b"".join([each.tobytes() for each in vectors.values()]),
            chunk_starts=b"" if starts is None else starts.tobytes(),
        )

    def encodings(self) -> list[Encoding]:
        """Return the sequences with the columns that the engine reads."""
        block = np.frombuffer(self.tokens, np.int32).reshape(self.columns, -1)
        ids, segments, words, sequences = (*block, *block)[:4] if self.columns == 2 else block
        ends = itertools.accumulate(self.lengths)
        parts = [slice(end - length, end) for length, end in zip(self.lengths, ends, strict=True)]
        found = [Encoding(ids[at], segments[at], _NO_OFFSETS, words[at], sequences[at]) for at in parts]
        if self.sets:
            vectors = np.frombuffer(self.label_vectors, np.float32).reshape(sum(self.labels), -1)
            sets = np.split(vectors, np.cumsum(self.labels)[:-1])
            for encoding, number in zip(found, self.sets, strict=True):
                encoding.label_vectors = sets[number]
        if self.chunk_starts:
            found[0].chunk_starts = np.frombuffer(self.chunk_starts, np.int32)
        return found


@dataclass(frozen=True, slots=True)
class Cancel:
    """Frontend to engine: nobody waits for this request any more."""

    key: int


@dataclass(frozen=True, slots=True)
class Started:
    """Engine to frontend: the last attempt of a request starts, with nothing else in the engine."""

    key: int


@dataclass(frozen=True, slots=True)
class Done:
    """Engine to frontend: the outputs of a request."""

    key: int
    counts: list[int]
    """Number of rows in each sequence's output."""
    shape: tuple[int, ...]
    """Shape of a row."""
    values: bytes
    """float32 (sum of counts, *shape)"""
    queue_s: float
    inference_s: float

    @classmethod
    def of(cls, key: int, result: SubmitResult) -> Self:
        """Encode a result."""
        values = joined(result.outputs)
        counts = [len(output) for output in result.outputs]
        return cls(key, counts, values.shape[1:], values.tobytes(), result.queue_s, result.inference_s)

    def result(self) -> SubmitResult:
        """Return the result."""
        values: Floats = np.frombuffer(self.values, np.float32).reshape(-1, *self.shape)
        return SubmitResult(split(values, self.counts), self.queue_s, self.inference_s)


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine to frontend: the error of a request."""

    key: int
    kind: str
    arguments: tuple[Any, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, key: int, error: Exception) -> Self:
        """Encode an error of the service; any other becomes an EngineError."""
        if isinstance(error, MemoryError):
            error = NotReadyError("the engine has no memory left for this request now; try again")
        if not isinstance(error, ServiceError) or not hasattr(errors, type(error).__name__):
            error = EngineError(f"the engine failed: {error!r}")
        return cls(key, type(error).__name__, error.args, dict(vars(error)))

    def error(self) -> ServiceError:
        """Return the error as it was, without its cause."""
        kind: type[ServiceError] = getattr(errors, self.kind)
        error = kind.__new__(kind)
        error.args = self.arguments
        vars(error).update(self.fields)
        return error


Message = Hello | Health | Taken | ManageModel | Managed | Submit | Cancel | Started | Done | Failed
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def write(message: Message) -> bytes:
    """Encode a message."""
    kind = type(message)
    return marshal.dumps((kind.__name__, *[getattr(message, name) for name in kind.__slots__]))


def read(data: bytes | memoryview) -> Message:
    """Decode a message."""
    kind, *values = marshal.loads(data)
    return _KINDS[kind](*values)


class Connection(asyncio.Protocol):
    """Sends and receives messages; those sent in one turn of the event loop leave in one write."""

    def __init__(
        self,
        received: Callable[["Connection", Message], None],
        lost: Callable[["Connection"], None],
        made: Callable[["Connection"], None] = lambda _: None,
    ) -> None:
        """Call `made`, `received` and `lost` with this connection."""
        self._made, self._received, self._lost = made, received, lost
        self._transport: asyncio.WriteTransport | None = None
        self._in, self._out = bytearray(), list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is not a subclass
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the other end closed."""
        self._transport = None
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Deliver the messages that are complete."""
        self._in += data
        start, view = 0, memoryview(self._in)
        complete = list[Message]()
        while len(view) - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, start)
            body = start + _SIZE.size
            if len(view) - body < size:
                break
            complete.append(read(view[body : body + size]))
            start = body + size
        view.release()
        del self._in[:start]
        for message in complete:
            self._received(self, message)

    def send(self, message: Message) -> None:
        """Send a message; no-op if the other end is gone."""
        if self._transport is None:
            return
        data = write(message)
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (_SIZE.pack(len(data)), data)

    def close(self) -> None:
        """Close the connection once all messages have left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()
