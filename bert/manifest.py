"""The content of `bundle.json`, and its rules."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, get_origin

from bert.errors import BundleError, BundleIntegrityError, ConfigError
from bert.names import check_model_name
from bert.packing import CostModel
from bert.tasks.spec import TaskSpec

SCHEMA_VERSION = 2
PRECISIONS = ("fp32", "fp16", "int8")
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDER_OF_LAYOUT = {"rows": CPU, "flat": CUDA}
"""Layout → the one provider of ONNX Runtime that its graphs are verified on and run on."""
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")
"""The members of onnxruntime.GraphOptimizationLevel."""
SHA256 = "manifest_sha256"
"""Key of `bundle.json`: the hash of all its other keys, so that a label that was changed by hand is noticed."""

FALLBACK_KEYS = ("precision", "layout", "session", "packing", "parity", "fused_operators")
LABELS_KEYS = (
    *FALLBACK_KEYS,
    *("task", "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "attention"),
    "fallback",
)
_PACKING = {"align_tokens": 1, "block_tokens": 0, "max_pairs": 0}  # key → smallest value
_ATTENTION = {"scores": 1, "window_layers": 0, "window_tokens": 0}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of `bundle.json`: a description of the model beside it."""

    name: str
    version: str
    task: TaskSpec
    precision: str
    layout: str
    """"rows": packed rows, an attention bias made in the graph (CPU). "flat": one row, packed attention (CUDA)."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    session: dict[str, Any] = field(default_factory=dict)
    """Options of the session in which the graph was verified: `graph_optimization_level` (a member of
    onnxruntime.GraphOptimizationLevel) and `providers`, in order."""
    packing: dict[str, int] = field(default_factory=dict)
    """Places that texts may have in a row so that answers are bit for bit those of a text alone: `align_tokens`, every start
    is a multiple of it; `block_tokens`, a text crosses no multiple of it unless it starts at one (0: it may). On a GPU
    `max_pairs`, the largest number of texts times the square of the longest's tokens (0: any)."""
    attention: dict[str, int] = field(default_factory=dict)
    """Cost of attention where it is not BERT's: `scores`, the number of products that give the score of a pair of tokens;
    `window_layers`, the number of layers that see a window; `window_tokens`, the row width above which they
    cost no more a token. Empty for BERT's."""
    files: dict[str, str] = field(default_factory=dict)
    """File name → sha256, every file of the bundle but `bundle.json`."""
    parity: dict[str, Any] = field(default_factory=dict)
    """Comparison with the checkpoint: its subject, and the differences measured."""
    dev_score: dict[str, Any] = field(default_factory=dict)
    """Score on labelled data before and after export; empty where no data was given."""
    choice: dict[str, Any] = field(default_factory=dict)
    """Record of a precision that was chosen by measuring: what was `tried`, `why` one was taken, on which
    `machine`; empty where it was given."""
    fused_operators: dict[str, int] = field(default_factory=dict)
    """"domain.Operator" → how many; `com.microsoft` only."""
    source: dict[str, Any] = field(default_factory=dict)
    """The checkpoint's files by name and sha256, its base among them."""
    fallback: dict[str, Any] = field(default_factory=dict)
    """The float32 graph beside one in 8 bits, served where that one fails or gives different outputs: its `precision`,
    `layout`, `session`, `packing`, `parity` and `fused_operators`. Empty where the bundle has one graph."""
    labels_encoder: dict[str, Any] = field(default_factory=dict)
    """The encoder of labels, where these have one of their own: its graph's values of LABELS_KEYS. Empty where they have
    none."""
    reads_chunks: bool = False
    """The graph pools each chunk of a text by itself, where a request asks for that."""
    embedding_ranges: dict[str, Any] = field(default_factory=dict)
    """Ranges of an embedding's numbers, by which they are written as int8 and uint8: `Ranges.to_dict` of
    `bert.tasks.vectors.output_types`. Empty for another task, and where export compared few texts."""
    created: str = ""
    """Time at which the folder first got a bundle, in UTC (ISO 8601): one that replaces another keeps its time. Of several
    bundles for one task in a folder of bundles, the oldest is the default."""
    made_by: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise BundleError for a value that breaks a rule."""
        if self.schema_version != SCHEMA_VERSION:
            raise BundleError(f"schema_version is {self.schema_version}; this version reads {SCHEMA_VERSION}")
        self._check_types()
        if self.precision not in PRECISIONS:
            raise BundleError(f"precision is {self.precision!r}; known are {', '.join(PRECISIONS)}")
        if self.layout not in PROVIDER_OF_LAYOUT:
            raise BundleError(f"layout is {self.layout!r}; known are {', '.join(PROVIDER_OF_LAYOUT)}")
        if self.task.max_tokens > self.max_position_embeddings:
            raise BundleError(
                f"max_tokens ({self.task.max_tokens}) must be at most max_position_embeddings "
                f"({self.max_position_embeddings})"
            )
        if self.fallback:
            self.of_fallback()
        if self.labels_encoder:
            self.of_labels()
        if self.embedding_ranges:
            self._check_ranges()
        _check_session(self.session)
        _check_counts("packing", self.packing, _PACKING)
        _check_counts("attention", self.attention, _ATTENTION)
        if self.attention.get("window_layers", 0) > self.num_hidden_layers:
            raise BundleError(
                f"attention.window_layers ({self.attention['window_layers']}) must be at most num_hidden_layers "
                f"({self.num_hidden_layers})"
            )

    @property
    def expected_cost(self) -> CostModel:
        """Guess of the cost of a run, for programs that did not measure it."""
        return CostModel.for_model(self.hidden_size, self.num_hidden_layers, self.attention)

    @property
    def sha256(self) -> str:
        """Hash of the content, which holds the hashes of the bundle's files."""
        return str(self.to_dict()[SHA256])

    def of_fallback(self) -> "Manifest":
        """Return the manifest as it is of the float32 graph. Raises BundleError where `fallback` is not complete."""
        if set(self.fallback) != set(FALLBACK_KEYS):
            raise BundleError(
                f"fallback has the keys {sorted(self.fallback)}; needed are {sorted(FALLBACK_KEYS)}"
            )
        return replace(self, fallback={}, **self.fallback)

    def of_labels(self) -> "Manifest":
        """Return the manifest of the labels' encoder. Raises BundleError where `labels_encoder` is not complete."""
        if set(self.labels_encoder) != set(LABELS_KEYS):
            raise BundleError(
                f"labels_encoder has the keys {sorted(self.labels_encoder)}; needed are {sorted(LABELS_KEYS)}"
            )
        try:
            task = TaskSpec.from_dict(self.labels_encoder["task"])
        except ConfigError as error:
            raise BundleError(f"labels_encoder: its task is incomplete or damaged: {error}") from None
        none: dict[str, Any] = {
            name: {} for name in ("labels_encoder", "choice", "dev_score", "embedding_ranges")
        }
        return replace(self, **none, **{**self.labels_encoder, "task": task})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Manifest":
        """Build from the content of a `bundle.json`.

        Raises BundleError for missing or unknown keys, BundleIntegrityError where its own hash is missing.
        """
        if values.get("schema_version") != SCHEMA_VERSION:  # first: another schema has other keys
            raise BundleError(
                f"schema_version is {values.get('schema_version')!r}; this version reads {SCHEMA_VERSION}"
            )
        if SHA256 not in values:
            raise BundleIntegrityError(f"it has no {SHA256}, so that a change in it would not be noticed")
        given = {key: value for key, value in values.items() if key != SHA256}
        if unknown := set(given) - {each.name for each in fields(cls)}:
            raise BundleError(f"unknown keys {sorted(unknown)}")
        needed = {each.name for each in fields(cls) if each.default is each.default_factory is MISSING}
        if missing := needed - set(given):
            raise BundleError(f"missing keys {sorted(missing)}")
        try:
            return cls(**{**given, "task": TaskSpec.from_dict(given["task"])})
        except ConfigError as error:
            raise BundleError(f"its task is incomplete or damaged: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a `bundle.json`."""
        # The spec knows best how it is written; and hashed is what a reader will find.
        values = json.loads(json.dumps({**asdict(self), "task": self.task.to_dict()}))
        return {**values, SHA256: own_sha256(values)}

    def _check_ranges(self) -> None:
        """Raise BundleError unless the ranges are lists of numbers for this model, without numpy: the parent has none."""
        ranges, size = self.embedding_ranges, self.task.vector_size(self.hidden_size)
        lists: list[Any] = [ranges.get(name) for name in ("low", "high", "lengths")]
        if not all(isinstance(each, list) and all(map(_is_finite, each)) for each in lists):
            raise BundleError("embedding_ranges must have low, high and lengths, lists of finite numbers")
        low, high, lengths = lists
        if not len(low) == len(high) == size or len(lengths) not in (0, size):
            raise BundleError(
                f"embedding_ranges has {len(low)} low, {len(high)} high and {len(lengths)} lengths, and an embedding has "
                f"{size} numbers"
            )
        if any(first > last for first, last in zip(low, high, strict=True)) or any(
            each < 0 for each in lengths
        ):
            raise BundleError("embedding_ranges must have low at most high, and lengths at least 0")

    def _check_types(self) -> None:
        for each in fields(self):
            kind, value = get_origin(each.type) or each.type, getattr(self, each.name)
            if kind is str and not (isinstance(value, str) and (value or each.default == "")):
                raise BundleError(f"{each.name} ({value!r}) must be a text")
            if kind is int and not _is_whole(value, 1):
                raise BundleError(f"{each.name} ({value!r}) must be a whole number of at least 1")
            if kind is dict and not isinstance(value, dict):
                raise BundleError(f"{each.name} ({value!r}) must be an object")
        try:
            check_model_name(self.name)
        except ConfigError as error:
            raise BundleError(str(error)) from None
        for file, sha256 in self.files.items():
            if not isinstance(sha256, str):
                raise BundleError(f"files: the sha256 of {file} ({sha256!r}) must be a text")


def own_sha256(values: Mapping[str, Any]) -> str:
    """Return the hash of a `bundle.json`, whatever the order and the layout of its keys."""
    content = {key: value for key, value in values.items() if key != SHA256}
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _check_session(session: Mapping[str, Any]) -> None:
    for key, value in session.items():
        if key == "graph_optimization_level":
            if value not in LEVELS:
                raise BundleError(f"session.{key} is {value!r}; known are {', '.join(LEVELS)}")
        elif key == "providers":
            if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
                raise BundleError(f"session.{key} ({value!r}) must be a list of names")
        else:
            raise BundleError(f"session has the unknown key {key!r}")


def _check_counts(name: str, counts: Mapping[str, Any], smallest: Mapping[str, int]) -> None:
    for key, value in counts.items():
        if key not in smallest:
            raise BundleError(f"{name} has the unknown key {key!r}; known are {', '.join(smallest)}")
        if not _is_whole(value, smallest[key]):
            raise BundleError(f"{name}.{key} ({value!r}) must be a whole number of at least {smallest[key]}")


def _is_finite(value: object) -> bool:
    return (isinstance(value, float) and math.isfinite(value)) or (type(value) is int and abs(value) < 2**53)


def _is_whole(value: object, smallest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= smallest
