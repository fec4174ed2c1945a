"""Every exception of the project.

BertError
├── ConfigError            a configuration value breaks a rule
├── DataError              labelled data that cannot be read: file, line, reason
├── CheckpointError        a checkpoint folder that is incomplete or damaged
│   └── UnsupportedModelError      not the graph of BERT or a known relative
├── BundleError            a bundle folder that is incomplete or of another schema
│   └── BundleIntegrityError       a file's hash is not the one in the manifest
├── ExportError            a graph that could not be built
│   └── ParityError                built, but its answers differ from the checkpoint's
├── TrainingError          a run that cannot start or go on
├── InputError             a text that cannot be encoded as asked
│   ├── TextTooLongError           longer than the model reads
│   └── InvalidRequestError        fields of a request break rules
└── ServiceError           a reason why the service gives no result
    ├── RequestTooLargeError       more tokens than can ever be queued
    ├── UnknownModelError
    │   └── NoDefaultModelError        the request names no model and its task has no default
    ├── ModelLeftOutError
    ├── LoadError              a model could not be loaded, unloaded or brought back on request
    ├── QueueFullError
    │   └── TooLateError               what waits would take longer than the request has
    ├── RateLimitedError           the request's key has used what it may
    ├── DeadlineExceededError
    ├── NotReadyError
    │   └── ModelReplacedError         the request's version of the model left while it waited
    └── EngineError
        └── OutOfMemoryError       a text needs more memory than there is
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BertError(Exception):
    """The root: whatever this project raises on purpose."""


class ConfigError(BertError, ValueError):
    """A configuration value breaks a rule; the message names both."""


class DataError(BertError, ValueError):
    """Labelled data that cannot be read: where, and why."""

    def __init__(self, path: str | Path, line: int | None, reason: str) -> None:
        """`line` counts from 1; None where the whole file is at fault."""
        self.path, self.line, self.reason = str(path), line, reason
        super().__init__(f"{path}:{line}: {reason}" if line is not None else f"{path}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[str, int | None, str]]:
        """Cross from one process to another."""
        return type(self), (self.path, self.line, self.reason)


class CheckpointError(BertError):
    """A checkpoint folder is incomplete or damaged."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is not the graph of BERT or of a known relative."""


class BundleError(BertError):
    """A bundle folder is incomplete, or of a schema this version does not read."""


class BundleIntegrityError(BundleError):
    """A file of the bundle is not the one its manifest describes."""


class ExportError(BertError):
    """A graph could not be built from the checkpoint."""


class ParityError(ExportError):
    """The graph's answers differ from the checkpoint's by more than the tolerance."""

    def __init__(self, fact: str, advice: str = "", measured: Mapping[str, Any] | None = None) -> None:
        """`fact` is the number and the rule that it breaks; `measured` all numbers that were known by then."""
        self.fact, self.measured = fact, dict(measured or {})
        super().__init__(f"{fact}. {advice}" if advice else fact)


class TrainingError(BertError):
    """A training run cannot start or go on."""


class InputError(BertError, ValueError):
    """A text cannot be encoded as asked."""


class TextTooLongError(InputError):
    """A text has more tokens than the model reads."""

    def __init__(self, tokens: int, max_tokens: int) -> None:
        """Both counts include the special tokens."""
        self.tokens, self.max_tokens = tokens, max_tokens
        super().__init__(f"the text has {tokens} tokens and the model reads at most {max_tokens}")


MAX_FIELD_ERRORS = 20
"""Maximum fields that one error names, so that a response does not grow with its request."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """A fault in one field of a request."""

    field: str
    """Name of the field; one text of a list reads like text[3]."""
    message: str


class InvalidRequestError(InputError):
    """Fields of a request break rules."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        """Keep the first MAX_FIELD_ERRORS."""
        self.errors = tuple(errors[:MAX_FIELD_ERRORS])
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in self.errors))


class ServiceError(BertError):
    """A reason why the service gives no result."""


QUEUE_RULE = "at most {} may wait at once (max_queue_tokens), so it could never be answered"


class RequestTooLargeError(ServiceError):
    """A request has more tokens than its limit, however little else there is to do."""

    def __init__(self, tokens: int, max_tokens: int, rule: str = QUEUE_RULE, unit: str = "tokens") -> None:
        """`tokens` were counted before the request was given up; `rule` has {} in place of the limit."""
        self.tokens, self.max_tokens = tokens, max_tokens
        super().__init__(
            f"the request has {tokens} {unit} or more and {rule.format(max_tokens)}: send it in parts"
        )


JSON_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object", type(None): "null"}
MAX_NAME_CHARACTERS = 64
"""Maximum characters shown of a name that a client made up."""


def displayed(name: str) -> str:
    """Return a client's name as a message may show it: cut, and without half a surrogate pair."""
    cut = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 3]}..."
    return cut.encode("utf-8", "replace").decode()


def shown(value: object) -> str:
    """Return a JSON value as messages show it: a number, true, false and null as they are, else its type."""
    return JSON_NAMES.get(type(value)) or displayed(str(value).lower())


class UnknownModelError(ServiceError):
    """No model of that name is loaded."""

    def __init__(self, model: str, known: Sequence[str]) -> None:
        """`known` are the names that can be asked for."""
        self.model, self.known = displayed(model), tuple(known)
        super().__init__(f"there is no model {self.model!r}; loaded are {', '.join(known) or 'none'}")


class NoDefaultModelError(UnknownModelError):
    """A request names no model, and its task has no default."""

    def __init__(self, task: str, known: Sequence[str]) -> None:
        """`known` are the names that can be asked for."""
        super().__init__(task, known)
        self.args = (f"no model for {task} is loaded; loaded are {', '.join(known) or 'none'}",)


class ModelLeftOutError(ServiceError):
    """The model's bundle could not be loaded, so nothing answers for it."""

    def __init__(self, model: str) -> None:
        """Say where the reason is, not the reason: it names files, and clients without a key may read this."""
        self.model = model
        super().__init__(
            f"model {model!r} is not served: its bundle could not be loaded; the log and /models say why"
        )


class QueueFullError(ServiceError):
    """The queue's bound would be passed; nothing of the request was taken."""

    def __init__(
        self,
        queued_tokens: int,
        max_queue_tokens: int,
        retry_after_s: float,
        *,
        unit: str = "tokens",
        tokens_per_s: float = 0.0,
        sizes: tuple[float, float] = (0.0, float("inf")),
    ) -> None:
        """`retry_after_s` is when the queue should have room again, `unit` what the queue counts.

        The queue shrinks by `tokens_per_s`, 0 if that is not known. Requests of more tokens than the first of `sizes` and no
        more than the second wait in the same line.
        """
        self.queued_tokens, self.max_queue_tokens = queued_tokens, max_queue_tokens
        self.retry_after_s, self.tokens_per_s, self.sizes = retry_after_s, tokens_per_s, sizes
        super().__init__(f"{queued_tokens} {unit} are waiting and at most {max_queue_tokens} may")


class TooLateError(QueueFullError):
    """A request could not be answered by its deadline behind what already waits; nothing of it was taken."""

    def __init__(
        self,
        queued_tokens: int,
        max_queue_tokens: int,
        retry_after_s: float,
        needs_s: float,
        has_s: float,
        **options: Any,
    ) -> None:
        """`needs_s` is what it would take from now, `has_s` how long until its deadline; `options` of QueueFullError."""
        super().__init__(queued_tokens, max_queue_tokens, retry_after_s, **options)
        unit = options.get("unit", "tokens")
        self.needs_s, self.has_s = needs_s, has_s
        self.args = (
            f"{queued_tokens} {unit} are waiting: an answer would take about {needs_s:.1f} s, too near to or "
            f"over the {max(0.0, has_s):.1f} s that are left for it",
        )


class RateLimitedError(ServiceError):
    """The request's API key has used what it may for now; nothing of the request was taken."""

    def __init__(self, key: str, what: str, retry_after_s: float, limit: int) -> None:
        """`key` is its name, `what` completes "it has ...", `limit` what it may use at once or in a second."""
        self.retry_after_s, self.limit = retry_after_s, limit
        super().__init__(f"the key {key!r} has {what}")


class DeadlineExceededError(ServiceError):
    """The request's deadline passed before its answer was ready."""

    def __init__(self, timeout_ms: float) -> None:
        """`timeout_ms` is the deadline the request had."""
        self.timeout_ms = timeout_ms
        super().__init__(f"no answer within {timeout_ms:g} ms")


class LoadError(ServiceError):
    """A model could not be loaded, unloaded or brought back on request; what was served goes on."""


class NotReadyError(ServiceError):
    """The service is starting or stopping."""


class ModelReplacedError(NotReadyError):
    """The version of the model that read the request left before it was answered."""

    def __init__(self, model: str) -> None:
        """Name the model."""
        self.model = model
        super().__init__(f"model {model!r} was replaced while the request waited for its answer; try again")


class EngineError(ServiceError):
    """The inference engine failed on a batch."""


class OutOfMemoryError(EngineError):
    """The engine got no memory for a batch."""

    def __init__(self, tokens: int) -> None:
        """`tokens` are those of the batch; a request is told of its longest text, which ran alone."""
        self.tokens = tokens
        super().__init__(
            f"a text of {tokens} tokens needs more memory than the service can get: send it in parts, or raise the "
            "memory limit of the service"
        )
