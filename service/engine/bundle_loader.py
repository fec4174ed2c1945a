"""Loading of bundles: files are read and checked, graphs are opened and tested."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import TOKENIZER, Bundle, read_bundle
from bert.errors import BundleError, BundleIntegrityError
from bert.runtime import share_memory_arena
from service.engine.bundle_folders import all_on_gpu, bundle_folders, left_out
from service.engine.loaded_model import LeftOut, Model, OpenedModel
from service.engine.onnx_engine import OnnxEngine
from service.engine.sample_texts import WARM_UP_TOKENS, sample_texts
from service.engine.self_test import open_tested
from service.engine.slot_layout import GPU_SLOTS

MAX_MULTI_SLOT_BYTES = 2**29
"""Maximum size of a graph that is held in memory a second time."""


@dataclass(frozen=True, slots=True)
class LoadedBundles:
    """The bundles of a start: opened, and left out."""

    models: list[OpenedModel]
    left_out: list[LeftOut]
    names: list[tuple[str, str]]
    """Name and task of every bundle in the order of the folders, those left out included."""


def load_models(
    paths: Iterable[Path],
    *,
    threads: int,
    multi_slot_threads: int = 1,
    capture_graphs: bool = False,
    verify_hashes: bool,
    workers: int,
    strict: bool = False,
) -> LoadedBundles:
    """Open the bundles, `workers` at a time.

    A bundle that fails is left out with the error's message as the reason. With `strict`, or if no bundle is left, the
    error is raised. `capture_graphs` is for models on a GPU. With `multi_slot_threads` above 1 models on the CPU have a
    second session with that many threads, unless they are large.
    """
    share_memory_arena()
    # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
    gpu_slots = nullcontext() if all_on_gpu(paths) else BoundedSemaphore(GPU_SLOTS)
    loader = _Loader(threads, multi_slot_threads, capture_graphs, verify_hashes, gpu_slots)

    def load(folder: Path) -> OpenedModel | LeftOut:
        try:
            return loader.load(folder)
        except Exception as error:
            if strict:
                raise
            return left_out(folder, error)

    with ThreadPoolExecutor(workers, "load") as pool:
        return _without_duplicates(list(pool.map(load, bundle_folders(paths))), strict=strict)


@dataclass(frozen=True, slots=True)
class _Loader:
    threads: int
    multi_slot_threads: int
    capture_graphs: bool
    verify_hashes: bool
    gpu_slots: AbstractContextManager[object]

    def load(self, folder: Path) -> OpenedModel:
        """Open one bundle; raises BundleError or EngineError."""
        files = _file_states(folder)
        bundle = read_bundle(folder, verify_hashes=self.verify_hashes)
        model = Model.of(bundle, bundle.read(TOKENIZER))
        open_engine = partial(
            OnnxEngine, threads=self.threads, capture_graphs=self.capture_graphs, gpu_slots=self.gpu_slots
        )
        bundle, engine, why_fallback = open_tested(bundle, model.tokenizer, open_engine)
        engine.run(sample_texts(WARM_UP_TOKENS))
        opened = OpenedModel(
            bundle,
            model.tokenizer_json,
            model.tokenizer,
            why_fallback,
            engine=engine,
            multi_slot_engine=self._multi_slot_engine(bundle),
        )
        # onnxruntime reads a graph by its name, after its hash was compared.
        if _file_states(folder) != files:
            raise BundleIntegrityError(f"{folder} was replaced while it was loaded; start again")
        return opened

    def _multi_slot_engine(self, bundle: Bundle) -> OnnxEngine | None:
        is_large = bundle.model_path.stat().st_size > MAX_MULTI_SLOT_BYTES
        if self.multi_slot_threads == 1 or bundle.manifest.layout == "flat" or is_large:
            return None
        return OnnxEngine(bundle, self.multi_slot_threads, spin=True)


def _file_states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, which change when it is replaced or written to."""
    # Not the inodes: network file systems may change them.
    found = {file.name: file.stat() for file in folder.iterdir()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def _without_duplicates(found: Sequence[OpenedModel | LeftOut], *, strict: bool) -> LoadedBundles:
    """Leave out a model with the name of an earlier one.

    Raises BundleError for one if `strict`, and if no model is left.
    """
    models, left_out = dict[str, OpenedModel](), list[LeftOut]()
    names = list[tuple[str, str]]()
    for each in found:
        if isinstance(each, LeftOut):
            left_out.append(each)
            names.append((each.name, each.task))
        elif (other := models.setdefault(each.name, each)) is each:
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
    return LoadedBundles(list(models.values()), left_out, names)
