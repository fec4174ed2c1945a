"""Models, the interface of their engines, and the registry that finds models by name."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from bert.bundle import QUERY_WEIGHTS, TOKENIZER, Bundle
from bert.errors import (
    BundleError,
    ConfigError,
    FieldError,
    InvalidRequestError,
    ModelLeftOutError,
    NoDefaultModelError,
    UnknownModelError,
)
from bert.manifest import PROVIDER_OF_LAYOUT
from bert.packing import CostModel
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Encoding, Tokenizer

Floats = NDArray[np.float32]
ID_DIGITS = 16
"""Digits of a version's hash in its id."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a batch of N texts."""

    texts: list[Floats]
    """Output of each text: (P, K) at its P head positions, an embedding (1, H), or the best pieces (M, 2, K) of M masks."""
    padding_ratio: float
    """Padding over all computed tokens."""


class Engine(Protocol):
    """A model that runs batches; called from several threads at once."""

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Run the texts together; any exception means that the batch failed.

        After an OutOfMemoryError fewer texts, or a run with nothing beside it, may succeed.
        """
        ...


class PackingEngine(Engine, Protocol):
    """An engine that decides by a cost model how it packs a batch."""

    def set_cost(self, cost: CostModel) -> None:
        """Pack by this model from now on."""
        ...


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Model:
    """A bundle with its tokenizer; `OpenedModel` adds the engine."""

    bundle: Bundle
    tokenizer_json: bytes
    """Content of `tokenizer.json`, sent to the processes that tokenise."""
    tokenizer: Tokenizer
    why_fallback: str = ""
    """Reason for serving the float32 graph instead of the 8-bit one; empty if it is not."""
    labels: "Model | None" = None
    """The encoder of labels, where these have one of their own. Requests cannot name it."""
    query_weights: Floats | None = None
    """Weights of queries' pieces (V,), where they need no run."""
    id: str = field(init=False)
    """Name and hash: what the scheduler knows this version by. `name_of` gives the name."""

    def __post_init__(self) -> None:
        """Make the id; it is asked for by every request."""
        object.__setattr__(self, "id", f"{self.name}@{self.version[:ID_DIGITS]}")

    @staticmethod
    def of(
        bundle: Bundle,
        tokenizer_json: bytes,
        why_fallback: str = "",
        labels_json: bytes = b"",
        query_weights: bytes = b"",
    ) -> "Model":
        """Return a bundle with its tokenizer; raises BundleError if they do not belong together.

        `labels_json` is the content of LABELS_TOKENIZER, and `query_weights` that of QUERY_WEIGHTS; both are empty where the
        bundle has no such file.
        """
        tokenizer, known = Tokenizer.parse(tokenizer_json, bundle.tokenizer_path), bundle.manifest.vocab_size
        if (highest := tokenizer.highest_id()) >= known:
            raise BundleError(
                f"{bundle.tokenizer_path} has ids up to {highest}, and the model has {known} pieces: they do not "
                "belong together; export the checkpoint again"
            )
        tokenizer = tokenizer.with_letter_shapes(bundle.manifest.task.letter_shapes)
        labels = Model.of(bundle.labels, labels_json) if bundle.labels is not None else None
        table = _table_of_queries(bundle, query_weights) if bundle.manifest.task.query_weights else None
        return Model(bundle, tokenizer_json, tokenizer, why_fallback, labels, table)

    @property
    def name(self) -> str:
        """Name that requests use."""
        return self.bundle.manifest.name

    @property
    def spec(self) -> TaskSpec:
        """Task, labels and limits."""
        return self.bundle.manifest.task

    @property
    def task(self) -> str:
        """Name of its task."""
        return self.spec.task

    @property
    def embedding_size(self) -> int | None:
        """Numbers of a vector; None for a model of another task."""
        spec = self.spec
        return spec.vector_size(self.bundle.manifest.hidden_size) if TASKS[spec.task].has_dense else None

    @property
    def version(self) -> str:
        """Hash of the manifest, which contains its files' hashes."""
        return self.bundle.manifest.sha256

    @property
    def origin(self) -> str:
        """Hash of checkpoint, tokenizer and task: what is tokenised for a bundle can be run by another of the same origin.

        Of a bundle whose manifest names no checkpoint it is `version`.
        """
        manifest = self.bundle.manifest
        if not manifest.source:
            return self.version
        parts = [manifest.source, self.spec.to_dict(), manifest.files[TOKENIZER], manifest.hidden_size]
        if self.labels is not None:
            parts.append(manifest.files[self.labels.bundle.tokenizer])
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def provider(self) -> str:
        """Execution provider of its graph."""
        return PROVIDER_OF_LAYOUT[self.bundle.manifest.layout]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel(Model):
    """A model with the engine that runs it."""

    engine: PackingEngine = field(kw_only=True)
    multi_slot_engine: Engine | None = field(default=None, kw_only=True)
    """The same graph with the threads of several slots, if enabled."""

    def without_engine(self, *, keep_tokenizer: bool = True) -> Model:
        """Return the model without its engines, and without its tokenizer in a process that does not tokenise."""
        tokenizer = self.tokenizer if keep_tokenizer else cast(Tokenizer, None)
        parts = self.why_fallback, self.labels, self.query_weights
        return Model(self.bundle, self.tokenizer_json, tokenizer, *parts)


def _table_of_queries(bundle: Bundle, content: bytes) -> Floats:
    """Return the weights of queries' pieces, (V,). Raises BundleError for too few or too many, or one that is not finite."""
    vocab_size = bundle.manifest.vocab_size
    table = np.frombuffer(content, "<f4") if len(content) == 4 * vocab_size else np.zeros(0, np.float32)
    if not (len(table) and np.isfinite(table).all()):
        raise BundleError(
            f"{bundle.folder / QUERY_WEIGHTS} must hold {vocab_size} finite numbers, one a piece; "
            "export the checkpoint again"
        )
    return table


@dataclass(frozen=True, slots=True)
class SkippedBundle:
    """A bundle that is not served, and why."""

    name: str
    """Name in the manifest, or the folder's if the manifest cannot be read."""
    task: str
    """Task in the manifest; empty if that cannot be read."""
    reason: str


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, and the name of each task's default."""

    models: Mapping[str, Model]
    """The default version of each model by its name, the others by NAME@VERSION."""
    defaults: Mapping[str, str]
    """Task → name; the name may be that of a bundle that was left out."""
    left_out: Sequence[SkippedBundle] = ()
    first: str = ""
    """Name of the first bundle, the default for requests that name no task; it may be left out."""
    unloaded: Sequence[SkippedBundle] = ()
    """Models that were unloaded on request. They stay the defaults that they were."""
    failed: Sequence[SkippedBundle] = ()
    """Bundles that came while the service ran and cannot be served; what was served before them goes on."""

    @staticmethod
    def of(
        every: Sequence[Model | SkippedBundle],
        chosen: Mapping[str, str],
        unloaded: Sequence[SkippedBundle] = (),
        failed: Sequence[SkippedBundle] = (),
        versions: Mapping[str, str] | None = None,
    ) -> "Registry":
        """Return the registry of all bundles, the skipped and the `unloaded` ones included.

        `versions` are the default versions that were chosen, by name. Raises ConfigError for a `chosen` default that is not
        there.
        """
        names = [(each.name, each.task) for each in every]
        return Registry(
            by_key([each for each in every if isinstance(each, Model)], versions or {}),
            default_names(names, chosen),
            [each for each in every if isinstance(each, SkippedBundle) and each not in unloaded],
            names[0][0],
            unloaded,
            failed,
        )

    def find(self, name: str | None, task: str | None) -> Model:
        """Return the model for a request; `task` None takes any.

        Raises UnknownModelError if there is no model of that name, or no default; ModelLeftOutError if its bundle was
        left out; InvalidRequestError if the model is for another task.
        """
        if name is None:
            name = self.defaults.get(task, "") if task is not None else self.first
            if not name:
                raise NoDefaultModelError(task or "any task", sorted(self.models))
        model = self.models.get(name) or self._default_version(name)
        if model is None:
            if name in (left_out.name for left_out in self.left_out):
                raise ModelLeftOutError(name)
            raise UnknownModelError(name, sorted(self.models))
        if task is not None and model.spec.task != task:
            fitting = sorted(other.name for other in self.models.values() if other.spec.task == task)
            message = (
                f"model {name!r} is for {model.spec.task}, this endpoint needs one for {task}: "
                f"{', '.join(fitting) or 'none is loaded'}"
            )
            raise InvalidRequestError([FieldError("model", message)])
        return model

    def _default_version(self, name: str) -> Model | None:
        """Return the model of NAME@VERSION if that is its default version."""
        model = self.models.get(name.rpartition("@")[0])
        return (
            model if model is not None and name == f"{model.name}@{model.bundle.manifest.version}" else None
        )

    def key_of(self, model: Model) -> str:
        """Return the shortest name by which a request gets this version of a model."""
        is_default = self.models.get(model.name) in (model, None)
        return model.name if is_default else f"{model.name}@{model.bundle.manifest.version}"

    def versions(self, name: str) -> list[Model]:
        """Return all versions of a model, the default one first."""
        found = [model for model in self.models.values() if model.name == name]
        return sorted(found, key=lambda model: self.models.get(name) is not model)


def by_key(models: Sequence[Model], chosen: Mapping[str, str]) -> dict[str, Model]:
    """Return the models by the names that requests give them.

    The default of several versions is the `chosen` one, else the highest: by number if all are whole numbers.
    """
    found = dict[str, Model]()
    for name in dict.fromkeys(model.name for model in models):
        versions = {model.bundle.manifest.version: model for model in models if model.name == name}
        are_numbers = all(version.isdecimal() for version in versions)
        highest = max(versions, key=lambda version: (int(version) if are_numbers else 0, version))
        default = chosen.get(name, "") if chosen.get(name) in versions else highest
        others = {f"{name}@{version}": model for version, model in versions.items() if version != default}
        found |= {name: versions[default], **others}
    return found


def default_names(bundles: Sequence[tuple[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return task → name of its default: the chosen one, else the first; `bundles` are names and tasks.

    A bundle that was left out stays a default: another model must not reply in its place unnoticed. If its manifest cannot
    be read its task is empty, and it can only be chosen. Raises ConfigError for a chosen model that is not there.
    """
    defaults = {task: name for name, task in reversed(bundles) if task}
    for task, name in chosen.items():
        if (name, task) not in bundles and (name, "") not in bundles:
            fitting = [other for other, its_task in bundles if its_task == task]
            raise ConfigError(f"default_models: {name!r} is not a loaded {task} model; loaded are {fitting}")
        defaults[task] = name
    return defaults
