"""The models that are loaded, and which of them answers a request."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import MANIFEST, MODEL, TOKENIZER, Bundle, creation_time, read_bundle
from bert.errors import (
    BertError,
    BundleError,
    BundleIntegrityError,
    ConfigError,
    InputError,
    ModelLeftOutError,
    UnknownModelError,
)
from bert.manifest import SHA256, Manifest
from bert.tasks.spec import TASKS, TaskSpec
from bert.tokenizer import Tokenizer
from service.autotune.cost_curve import sample_texts
from service.engine.onnx_engine import (
    CPU,
    CUDA,
    GPU_SLOTS,
    PROVIDER_OF_LAYOUT,
    OnnxEngine,
    share_memory_arena,
)
from service.engine.self_test import open_tested
from service.http.problems import shown

MOST_WIDE_BYTES = 2**29
"""Of a graph that is held in memory a second time."""
NAME_IN_MANIFEST = re.compile(r'\A\s*\{\s*"name":\s*"([^"\\]+)"')
TASK_IN_MANIFEST = re.compile(r'"task":\s*\{[^{}]*?"task":\s*"(\w+)"')
WARM_UP_TOKENS = 16
"""Length of the text that every model runs before it counts as loaded."""


class NoModelError(UnknownModelError):
    """A request names no model, and none is loaded for its task."""

    def __str__(self) -> str:
        """Return the message."""
        return f"no model for {self.model} is loaded; loaded are {', '.join(self.known) or 'none'}"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A bundle whose texts can be read and whose answers can be decoded."""

    bundle: Bundle
    tokenizer_json: bytes
    """Content of `tokenizer.json`, handed to the processes that read texts."""
    tokenizer: Tokenizer
    why_fallback: str = ""
    """Why the bundle's float32 graph is served in place of the one in 8 bits; empty if it is not."""

    @property
    def name(self) -> str:
        """The name that requests use."""
        return self.bundle.manifest.name

    @property
    def spec(self) -> TaskSpec:
        """Task, labels and limits."""
        return self.bundle.manifest.task

    @property
    def version(self) -> str:
        """The hash of its manifest, which names its files' hashes."""
        return str(self.bundle.manifest.to_dict()[SHA256])

    @property
    def provider(self) -> str:
        """Where its graph runs."""
        return PROVIDER_OF_LAYOUT[self.bundle.manifest.layout]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel(Model):
    """A model with the engine that runs it."""

    engine: OnnxEngine = field(kw_only=True)
    wide: OnnxEngine | None = field(default=None, kw_only=True)
    """The same graph with the threads of several slots, where that is wanted."""

    def closed(self) -> Model:
        """Return the model without its engines."""
        return Model(self.bundle, self.tokenizer_json, self.tokenizer, self.why_fallback)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A bundle that is not served, and why."""

    name: str
    """The manifest's, or the folder's where the manifest cannot be read."""
    task: str
    """The manifest's, empty where it cannot be read."""
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedBundles:
    """The bundles of a start: those that were opened, and those that were left out."""

    models: list[OpenedModel]
    left_out: list[LeftOut]
    names: list[tuple[str, str]]
    """Name and task of every bundle in the order of the folders, those left out among them."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, and the name of each task's default."""

    models: Mapping[str, Model]
    defaults: Mapping[str, str]
    """Task → name; the name may be that of a bundle that was left out."""
    left_out: Sequence[LeftOut] = ()
    first: str = ""
    """Name of the bundle that comes first, which answers where neither model nor task is named; it may be left out."""

    @classmethod
    def of(
        cls,
        models: Sequence[Model],
        defaults: Mapping[str, str],
        left_out: Sequence[LeftOut] = (),
        first: str = "",
    ) -> "Registry":
        """Index the models by their names."""
        return cls({model.name: model for model in models}, defaults, left_out, first)

    def find(self, name: str | None, task: str | None) -> Model:
        """Return the model for a request.

        `task` None takes any. Raises UnknownModelError if there is none of that name, or no default;
        ModelLeftOutError if its bundle was left out; InputError if the model is for another task.
        """
        if name is None:
            name = self.defaults.get(task, "") if task is not None else self.first
            if not name:
                raise NoModelError(task or "any task", sorted(self.models))
        model = self.models.get(name)
        if model is None:
            self.check_not_left_out(name)
            raise UnknownModelError(shown(name), sorted(self.models))
        if task is not None and model.spec.task != task:
            fitting = sorted(other.name for other in self.models.values() if other.spec.task == task)
            raise InputError(
                f"model {name!r} is for {model.spec.task}, this endpoint needs one for {task}: "
                f"{', '.join(fitting) or 'none is loaded'}"
            )
        return model

    def check_not_left_out(self, name: str) -> None:
        """Raise ModelLeftOutError if the bundle of that name was left out."""
        for left_out in self.left_out:
            if left_out.name == name:
                raise ModelLeftOutError(name)


def default_names(bundles: Sequence[tuple[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return task → name of its default: the one chosen, else the first; `bundles` are names and tasks.

    A bundle that was left out stays a default: another model must not answer in its place unnoticed. Its task is empty where
    its manifest cannot be read, and then it can only be chosen. Raises ConfigError for a chosen one that is not there.
    """
    defaults = {task: name for name, task in reversed(bundles) if task}
    for task, name in chosen.items():
        if (name, task) not in bundles and (name, "") not in bundles:
            fitting = [other for other, its_task in bundles if its_task == task]
            raise ConfigError(f"default_models: {name!r} is no loaded {task} model; loaded are {fitting}")
        defaults[task] = name
    return defaults


def bundle_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the bundle folders among the paths and directly inside them, there the oldest first.

    The first of a task is its default, which a bundle that is added later does not become. Raises BundleError where there
    are none.
    """
    found: list[Path] = []
    for path in paths:
        if (path / MANIFEST).is_file():
            found.append(path)
            continue
        # A folder without a manifest but with other files of a bundle was copied in part: it is reported, not passed over.
        parts = (file.parent for name in (MANIFEST, MODEL, TOKENIZER) for file in path.glob(f"*/{name}"))
        inside = sorted(
            {folder for folder in parts if not folder.name.startswith(".")},
            key=lambda folder: (creation_time(folder), folder.name),
        )
        if not inside:
            what = "holds no bundle" if path.is_dir() else "is no folder"
            raise BundleError(
                f"{path} {what}: make one with bert-export, or the demo ones with `bert-export --demo "
                f"--out {path}`"
            )
        found += inside
    return list(dict.fromkeys(found))


def read_model(folder: Path, *, verify_hashes: bool) -> Model:
    """Read a bundle's manifest and tokenizer; raises BundleError if they do not belong together."""
    bundle = read_bundle(folder, verify_hashes=verify_hashes)
    return model_of(bundle, bundle.read(TOKENIZER))


def model_of(bundle: Bundle, tokenizer_json: bytes, why_fallback: str = "") -> Model:
    """Return a bundle with its tokenizer; raises BundleError if they do not belong together."""
    tokenizer, known = Tokenizer.parse(tokenizer_json, bundle.tokenizer_path), bundle.manifest.vocab_size
    if tokenizer.vocab_size > known:
        raise BundleError(
            f"{bundle.tokenizer_path} has {tokenizer.vocab_size} pieces and the model knows {known}: they do not "
            "belong together; export the checkpoint again"
        )
    return Model(bundle, tokenizer_json, tokenizer, why_fallback)


def read_manifests(paths: Iterable[Path], *, strict: bool = False) -> list[Manifest | LeftOut]:
    """Read the manifest of each bundle, without looking at the other files.

    What cannot be read is left out, unless it is `strict`. Raises BundleError where there are no bundles.
    """
    found = list[Manifest | LeftOut]()
    for folder in bundle_folders(paths):
        try:
            found.append(read_bundle(folder, verify_hashes=False).manifest)
        except Exception as error:
            if strict:
                raise
            found.append(left_out(folder, error))
    return found


def left_out(folder: Path, error: Exception) -> LeftOut:
    """Return what is known of a bundle that could not be loaded."""
    reason = str(error) if isinstance(error, BertError) else f"{folder} cannot be loaded: {error!r}"
    name, task = folder.resolve().name, ""
    with suppress(OSError):
        # Of a manifest that was cut off too: so it stays the default of its task.
        text = (folder / MANIFEST).read_text(encoding="utf-8", errors="replace")
        if (found := NAME_IN_MANIFEST.search(text)) is not None:
            name = found[1]
        if (found := TASK_IN_MANIFEST.search(text)) is not None and found[1] in TASKS:
            task = found[1]
    return LeftOut(name, task, reason)


def all_on_gpu(paths: Iterable[Path]) -> bool:
    """Tell whether every readable bundle is for a GPU. Raises BundleError where there are none."""
    manifests = [found for found in read_manifests(paths) if isinstance(found, Manifest)]
    return bool(manifests) and all(PROVIDER_OF_LAYOUT[each.layout] == CUDA for each in manifests)


def load_models(
    paths: Iterable[Path],
    *,
    threads: int,
    wide_threads: int = 1,
    captures: bool = False,
    verify_hashes: bool,
    workers: int,
    strict: bool = False,
) -> LoadedBundles:
    """Open the bundles, several at a time.

    A bundle that fails is left out, with the error's message as the reason; if it is `strict`, or if none is left, that is
    raised. `captures` is for bundles on a GPU. With more than one of `wide_threads` models on the CPU have a second session
    with so many, unless they are large.
    """
    share_memory_arena()
    # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
    turn = None if all_on_gpu(paths) else BoundedSemaphore(GPU_SLOTS)

    def load(folder: Path) -> OpenedModel:
        checked = _state_of(folder)
        model = read_model(folder, verify_hashes=verify_hashes)
        is_flat = model.bundle.manifest.layout == "flat"
        open_engine = partial(OnnxEngine, threads=threads, captures=captures, turn=turn if is_flat else None)
        bundle, engine, why_fallback = open_tested(model.bundle, model.tokenizer, open_engine)
        engine.run(sample_texts(WARM_UP_TOKENS))
        is_small = bundle.model_path.stat().st_size <= MOST_WIDE_BYTES
        has_wide = wide_threads > 1 and engine.provider == CPU and is_small
        wide = OnnxEngine(bundle, wide_threads, has_cores_alone=True) if has_wide else None
        # onnxruntime reads a graph by its name, after its hash was compared.
        if _state_of(folder) != checked:
            raise BundleIntegrityError(f"{folder} was replaced while it was loaded; start again")
        return OpenedModel(
            bundle, model.tokenizer_json, model.tokenizer, why_fallback, engine=engine, wide=wide
        )

    def load_or_leave_out(folder: Path) -> OpenedModel | LeftOut:
        try:
            return load(folder)
        except Exception as error:
            if strict:
                raise
            return left_out(folder, error)

    with ThreadPoolExecutor(workers, "load") as pool:
        return _checked(list(pool.map(load_or_leave_out, bundle_folders(paths))), strict=strict)


def _state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, which differ after it was replaced or written to."""
    # Not the inodes: network file systems may change them.
    found = {file.name: file.stat() for file in folder.iterdir()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def _checked(found: Sequence[OpenedModel | LeftOut], *, strict: bool) -> LoadedBundles:
    """Leave out a model with the name of an earlier one, unless it is `strict`.

    Raises BundleError then, and where nothing is left to serve.
    """
    models, left_out = list[OpenedModel](), list[LeftOut]()
    names, by_name = list[tuple[str, str]](), dict[str, OpenedModel]()
    for each in found:
        if isinstance(each, LeftOut):
            left_out.append(each)
            names.append((each.name, each.task))
        elif (other := by_name.setdefault(each.name, each)) is each:
            models.append(each)
            names.append((each.name, each.spec.task))
        else:
            error = BundleError(
                f"two bundles have the name {each.name!r}: {other.bundle.folder} and {each.bundle.folder}; "
                "export one by another --name"
            )
            if strict:
                raise error
            left_out.append(LeftOut(each.name, each.spec.task, str(error)))
    if not models:
        reasons = "; ".join(each.reason for each in left_out)
        raise BundleError(
            reasons if len(left_out) == 1 else f"none of {len(left_out)} bundles is left: {reasons}"
        )
    return LoadedBundles(models, left_out, names)
