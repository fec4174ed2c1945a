"""Loading of bundles: files are read and checked, graphs are opened and tested."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import TOKENIZER, Bundle, read_bundle
from bert.errors import BundleError, BundleIntegrityError, EngineError
from bert.processor import instructions
from bert.runtime import share_memory_arena
from bert.self_test import SELF_TEST, SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tokenizer import Tokenizer
from service.engine.bundle_folders import (
    NONE_KNOWN,
    FileStates,
    Known,
    all_on_gpu,
    bundle_folders,
    file_states,
    left_out,
)
from service.engine.engine_protocol import Engine, PackingEngine
from service.engine.loaded_model import LeftOut, Model, OpenedModel
from service.engine.onnx_engine import OnnxEngine
from service.engine.sample_texts import WARM_UP_TOKENS, sample_texts
from service.engine.slot_layout import GPU_SLOTS
from service.logs import LOGGER

OpenEngine = Callable[[Bundle], PackingEngine]
MAX_MULTI_SLOT_BYTES = 2**29
"""Maximum size of a graph that is held in memory a second time."""


@dataclass(frozen=True, slots=True)
class LoadedBundles:
    """The bundles of a start: opened, and left out."""

    found: dict[Path, OpenedModel | LeftOut]
    """Folder → the opened model, or the bundle that was left out, in the order of the folders."""
    failed: list[LeftOut]
    """Models without a bundle."""
    files: dict[Path, FileStates]
    """Files of each folder before they were read."""
    open: Callable[[Path], OpenedModel]
    """Opens a bundle while others are served; raises BundleError or EngineError."""

    @property
    def models(self) -> list[OpenedModel]:
        """The opened models, in the order of their folders."""
        return [each for each in self.found.values() if isinstance(each, OpenedModel)]

    @property
    def left_out(self) -> list[LeftOut]:
        """The bundles that were left out, and the models without a bundle."""
        return [each for each in (*self.found.values(), *self.failed) if isinstance(each, LeftOut)]

    @property
    def names(self) -> list[tuple[str, str]]:
        """Name and task of every model, those left out included."""
        return [(each.name, each.task) for each in (*self.found.values(), *self.failed)]


def load_models(
    paths: Iterable[Path],
    *,
    threads: int,
    multi_slot_threads: int = 1,
    capture_graphs: bool = False,
    verify_hashes: bool,
    workers: int,
    strict: bool = False,
    failed: Mapping[str, str] | None = None,
    known: Known = NONE_KNOWN,
) -> LoadedBundles:
    """Open the bundles, `workers` at a time; `failed` are models without one, by name, and the reasons.

    A bundle that fails is left out with the error's message as the reason. With `strict`, or if no bundle is left, the
    error is raised. `known` are bundles that an earlier process found. `capture_graphs` is for models on a GPU. With
    `multi_slot_threads` above 1 models on the CPU have a second session with that many threads, unless they are large.
    """
    share_memory_arena()
    # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
    gpu_slots = nullcontext() if all_on_gpu(paths, known) else BoundedSemaphore(GPU_SLOTS)
    open_engine = partial(OnnxEngine, threads=threads, gpu_slots=gpu_slots)

    def open_model(folder: Path, *, capture_graphs: bool = False) -> OpenedModel:
        captures = partial(open_engine, capture_graphs=capture_graphs)
        return _open_model(folder, captures, multi_slot_threads, verify_hashes=verify_hashes)

    def load(folder: Path) -> OpenedModel | LeftOut:
        try:
            return open_model(folder, capture_graphs=capture_graphs)
        except Exception as error:
            if strict:
                raise
            return left_out(folder, error, known)

    folders = bundle_folders(paths, known)
    files = {folder: file_states(folder) for folder in folders}
    with ThreadPoolExecutor(workers, "load") as pool:
        found = dict(zip(folders, pool.map(load, folders), strict=True))
    missing = [LeftOut(name, "", reason) for name, reason in (failed or {}).items()]
    # Opened later, a model has no CUDA graphs: no batch may run on the GPU while one is captured.
    loaded = LoadedBundles(_without_duplicates(found, strict=strict), missing, files, open_model)
    if not loaded.models:
        reasons = "; ".join(each.reason for each in loaded.left_out)
        count = len(loaded.left_out)
        raise BundleError(reasons if count == 1 else f"none of {count} bundles is left: {reasons}")
    return loaded


def _open_model(
    folder: Path, open_engine: OpenEngine, multi_slot_threads: int, *, verify_hashes: bool
) -> OpenedModel:
    """Open one bundle; raises BundleError or EngineError."""
    files = file_states(folder)
    bundle = read_bundle(folder, verify_hashes=verify_hashes)
    model = Model.of(bundle, bundle.read(TOKENIZER))
    bundle, engine, why_fallback = open_tested(bundle, model.tokenizer, open_engine)
    engine.run(sample_texts(WARM_UP_TOKENS))
    is_large = bundle.model_path.stat().st_size > MAX_MULTI_SLOT_BYTES
    has_one_engine = multi_slot_threads == 1 or bundle.manifest.layout == "flat" or is_large
    multi_slot_engine = None if has_one_engine else OnnxEngine(bundle, multi_slot_threads, spin=True)
    # onnxruntime reads a graph by its name, after its hash was compared.
    if file_states(folder) != files:
        raise BundleIntegrityError(
            f"{folder} was changed while it was loaded; it loads once its files stay the same"
        )
    return OpenedModel(
        bundle,
        model.tokenizer_json,
        model.tokenizer,
        why_fallback,
        engine=engine,
        multi_slot_engine=multi_slot_engine,
    )


def _without_duplicates(
    found: Mapping[Path, OpenedModel | LeftOut], *, strict: bool
) -> dict[Path, OpenedModel | LeftOut]:
    """Leave out a model with the name of an earlier one; raises BundleError for it if `strict`."""
    kept = dict[Path, OpenedModel | LeftOut]()
    for folder, each in found.items():
        error = duplicate_error(each, kept.values())
        if error is not None and strict:
            raise error
        kept[folder] = each if error is None else LeftOut(each.name, each.task, str(error))
    return kept


def duplicate_error(model: Model | LeftOut, others: Iterable[Model | LeftOut]) -> BundleError | None:
    """Return an error if one of the others is a model with the same name."""
    for other in others:
        if isinstance(model, Model) and isinstance(other, Model) and model.name == other.name:
            return BundleError(
                f"two bundles have the name {model.name!r}: {other.bundle.folder} and {model.bundle.folder}; "
                "export one by another --name"
            )
    return None


def open_tested(
    bundle: Bundle, tokenizer: Tokenizer, open_engine: OpenEngine
) -> tuple[Bundle, PackingEngine, str]:
    """Open a bundle's graph, or its float32 one if the first fails or its outputs differ.

    Returns the bundle as it is served, its engine, and the reason for the float32 graph, empty if it is not used. Raises
    BundleError or EngineError if no graph passes.
    """

    def tested(bundle: Bundle) -> PackingEngine:
        engine = open_engine(bundle)
        check(bundle, tokenizer, engine)
        return engine

    try:
        return bundle, tested(bundle), ""
    except BundleIntegrityError:
        raise  # damaged, whatever the processor
    except (BundleError, EngineError) as error:
        if bundle.fallback is None:
            raise
        reason = str(error)
    LOGGER.error("%s; its float32 graph is served instead", reason)
    return bundle.fallback, tested(bundle.fallback), reason


def check(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> None:
    """Run a graph on the bundle's own texts, one by one and together.

    Raises BundleError if the outputs are not those of the export, EngineError if the graph fails. Only log a bundle
    without a self-test, which bert-export did not make.
    """
    if SELF_TEST not in bundle.manifest.files:
        LOGGER.warning(
            "%s has no %s, so its answers are not checked; export it again", bundle.folder, SELF_TEST
        )
        return
    expected = SelfTest.parse(bundle.read(SELF_TEST))
    encodings, task = encode(expected.texts, tokenizer, bundle.manifest.task), bundle.manifest.task.task
    alone = [engine.run([encoding]).texts[0] for encoding in encodings]
    errors = [
        expected.relative_error(bundle.graph, TASKS[task].self_test_scores(outputs))
        for outputs in (alone, engine.run(encodings).texts)
    ]
    allowed = expected.tolerances[bundle.graph]
    if not all(error <= allowed for error in errors):  # nan is not
        raise BundleError(
            f"{bundle.model_path} ({bundle.manifest.precision}) answers otherwise on this processor ({instructions()}) than "
            f"where it was exported ({expected.instructions}): a relative error of {max(errors):.2g} on its own "
            f"{len(expected.texts)} texts, and {allowed:.2g} is allowed; export it on this machine, or with --precision fp32"
        )
