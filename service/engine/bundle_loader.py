"""Opening bundles: files are read and checked, graphs are opened and tested."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import TOKENIZER, read_bundle
from bert.errors import (
    BundleError,
    BundleIntegrityError,
)
from bert.manifest import CPU
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
    """The bundles of a start: those that were opened, and those that were left out."""

    models: list[OpenedModel]
    left_out: list[LeftOut]
    names: list[tuple[str, str]]
    """Name and task of every bundle in the order of the folders, those left out among them."""


def read_model(folder: Path, *, verify_hashes: bool) -> Model:
    """Read a bundle's manifest and tokenizer; raises BundleError if they do not belong together."""
    bundle = read_bundle(folder, verify_hashes=verify_hashes)
    return Model.of(bundle, bundle.read(TOKENIZER))


def load_models(
    paths: Iterable[Path],
    *,
    threads: int,
    multi_slot_threads: int = 1,
    captures: bool = False,
    verify_hashes: bool,
    workers: int,
    strict: bool = False,
) -> LoadedBundles:
    """Open the bundles, several at a time.

    A bundle that fails is left out with the error's message as the reason. With `strict`, or if no bundle is left, the
    error is raised. `captures` captures CUDA graphs, `multi_slot_threads` above 1 opens a second session with that many
    threads for each model on the CPU, unless it is large.
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
        is_small = bundle.model_path.stat().st_size <= MAX_MULTI_SLOT_BYTES
        has_second = multi_slot_threads > 1 and model.provider == CPU and is_small
        multi_slot = OnnxEngine(bundle, multi_slot_threads, has_cores_alone=True) if has_second else None
        # onnxruntime reads a graph by its name, after its hash was compared.
        if _state_of(folder) != checked:
            raise BundleIntegrityError(f"{folder} was replaced while it was loaded; start again")
        return OpenedModel(
            bundle,
            model.tokenizer_json,
            model.tokenizer,
            why_fallback,
            engine=engine,
            multi_slot_engine=multi_slot,
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
