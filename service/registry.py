"""The models that are loaded, and which of them answers a request."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import MANIFEST, Bundle, read_bundle
from bert.errors import BundleError, ConfigError, InputError, UnknownModelError
from bert.manifest import SHA256
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from service.engine import CPU, CUDA, GPU_SLOTS, PROVIDER_OF_LAYOUT, OnnxEngine, share_memory_arena
from service.problems import shown

MOST_WIDE_BYTES = 2**29
"""Of a graph that is held in memory a second time."""


class NoModelError(UnknownModelError):
    """A request names no model, and none is loaded for its task."""

    def __str__(self) -> str:
        """Return the message."""
        return f"no model for {self.model} is loaded; loaded are {', '.join(self.known) or 'none'}"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A bundle whose texts can be read and whose answers can be decoded."""

    bundle: Bundle
    tokenizer: Tokenizer

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

    engine: OnnxEngine
    wide: OnnxEngine | None = None
    """The same graph with the threads of several slots, where that is wanted."""

    def closed(self) -> Model:
        """Return the model without its engines."""
        return Model(self.bundle, self.tokenizer)


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, and the name of each task's default."""

    models: Mapping[str, Model]
    defaults: Mapping[str, str]

    @classmethod
    def of(cls, models: Sequence[Model], chosen: Mapping[str, str]) -> "Registry":
        """Index the models.

        Raises ConfigError if a chosen default cannot be, BundleError for two models of one name.
        """
        by_name: dict[str, Model] = {}
        for model in models:
            if model.name in by_name:
                folders = f"{by_name[model.name].bundle.folder} and {model.bundle.folder}"
                raise BundleError(
                    f"two bundles have the name {model.name!r}: {folders}; export one by another --name"
                )
            by_name[model.name] = model
        return cls(by_name, default_names([(model.name, model.spec.task) for model in models], chosen))

    def find(self, name: str | None, task: str | None) -> Model:
        """Return the model for a request.

        `task` None takes any. Raises UnknownModelError if there is none of that name, or no default;
        InputError if the model is for another task.
        """
        if name is None:
            name = self.defaults.get(task, "") if task is not None else next(iter(self.models), "")
            if not name:
                raise NoModelError(task or "any task", sorted(self.models))
        model = self.models.get(name)
        if model is None:
            raise UnknownModelError(shown(name), sorted(self.models))
        if task is not None and model.spec.task != task:
            fitting = sorted(other.name for other in self.models.values() if other.spec.task == task)
            raise InputError(
                f"model {name!r} is for {model.spec.task}, this endpoint needs one for {task}: "
                f"{', '.join(fitting) or 'none is loaded'}"
            )
        return model


def default_names(models: Sequence[tuple[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return task → name of its default: the one chosen, else the first; `models` are names and tasks.

    Raises ConfigError for a chosen one that is not there.
    """
    defaults = {task: name for name, task in reversed(models)}
    for task, name in chosen.items():
        if (name, task) not in models:
            fitting = [other for other, its_task in models if its_task == task]
            raise ConfigError(f"default_models: {name!r} is no loaded {task} model; loaded are {fitting}")
        defaults[task] = name
    return defaults


def bundle_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the bundle folders among the paths and directly inside them.

    Raises BundleError where there are none.
    """
    found: list[Path] = []
    for path in paths:
        if (path / MANIFEST).is_file():
            found.append(path)
            continue
        inside = sorted(
            child.parent for child in path.glob(f"*/{MANIFEST}") if not child.parent.name.startswith(".")
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
    tokenizer, known = Tokenizer.load(bundle.tokenizer_path), bundle.manifest.vocab_size
    if tokenizer.vocab_size > known:
        raise BundleError(
            f"{bundle.tokenizer_path} has {tokenizer.vocab_size} pieces and the model knows {known}: they do not "
            "belong together; export the checkpoint again"
        )
    return Model(bundle, tokenizer)


def all_on_gpu(paths: Iterable[Path]) -> bool:
    """Tell whether every bundle is for a GPU. Raises BundleError where there are none."""
    manifests = (read_bundle(folder, verify_hashes=False).manifest for folder in bundle_folders(paths))
    return all(PROVIDER_OF_LAYOUT[manifest.layout] == CUDA for manifest in manifests)


def load_models(
    paths: Iterable[Path],
    *,
    threads: int,
    wide_threads: int = 1,
    captures: bool = False,
    verify_hashes: bool,
    workers: int,
) -> list[OpenedModel]:
    """Open the bundles, several at a time; raises what the first failing one does.

    `captures` is for those on a GPU. With more than one of `wide_threads` models on the CPU have a second session with so
    many, unless they are large.
    """
    share_memory_arena()
    # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
    turn = None if all_on_gpu(paths) else BoundedSemaphore(GPU_SLOTS)

    def load(folder: Path) -> OpenedModel:
        model = read_model(folder, verify_hashes=verify_hashes)
        is_flat = model.bundle.manifest.layout == "flat"
        engine = OnnxEngine(model.bundle, threads, captures=captures, turn=turn if is_flat else None)
        is_small = model.bundle.model_path.stat().st_size <= MOST_WIDE_BYTES
        has_wide = wide_threads > 1 and engine.provider == CPU and is_small
        wide = OnnxEngine(model.bundle, wide_threads, has_cores_alone=True) if has_wide else None
        return OpenedModel(model.bundle, model.tokenizer, engine, wide)

    with ThreadPoolExecutor(workers, "load") as pool:
        return list(pool.map(load, bundle_folders(paths)))
