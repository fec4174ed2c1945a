"""Loading of bundles: files are read and checked, graphs are opened and tested."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from service.engine.bundle_folders import all_on_gpu, bundle_folders, left_out
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
    failed: Mapping[str, str] | None = None,
) -> LoadedBundles:
    """Open the bundles, `workers` at a time; `failed` are models without one, by name, and the reasons.

    A bundle that fails is left out with the error's message as the reason. With `strict`, or if no bundle is left, the
    error is raised. `capture_graphs` is for models on a GPU. With `multi_slot_threads` above 1 models on the CPU have a
    second session with that many threads, unless they are large.
    """
    share_memory_arena()
    # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
    gpu_slots = nullcontext() if all_on_gpu(paths) else BoundedSemaphore(GPU_SLOTS)
    open_engine = partial(OnnxEngine, threads=threads, capture_graphs=capture_graphs, gpu_slots=gpu_slots)

    def load(folder: Path) -> OpenedModel | LeftOut:
        try:
            return _open_model(folder, open_engine, multi_slot_threads, verify_hashes=verify_hashes)
        except Exception as error:
            if strict:
                raise
            return left_out(folder, error)

    with ThreadPoolExecutor(workers, "load") as pool:
        found = list(pool.map(load, bundle_folders(paths)))
    missing = [LeftOut(name, "", reason) for name, reason in (failed or {}).items()]
    return _without_duplicates([*found, *missing], strict=strict)


def _open_model(
    folder: Path, open_engine: OpenEngine, multi_slot_threads: int, *, verify_hashes: bool
) -> OpenedModel:
    """Open one bundle; raises BundleError or EngineError."""
    files = _file_states(folder)
    bundle = read_bundle(folder, verify_hashes=verify_hashes)
    model = Model.of(bundle, bundle.read(TOKENIZER))
    bundle, engine, why_fallback = open_tested(bundle, model.tokenizer, open_engine)
    engine.run(sample_texts(WARM_UP_TOKENS))
    is_large = bundle.model_path.stat().st_size > MAX_MULTI_SLOT_BYTES
    has_one_engine = multi_slot_threads == 1 or bundle.manifest.layout == "flat" or is_large
    multi_slot_engine = None if has_one_engine else OnnxEngine(bundle, multi_slot_threads, spin=True)
    # onnxruntime reads a graph by its name, after its hash was compared.
    if _file_states(folder) != files:
        raise BundleIntegrityError(f"{folder} was replaced while it was loaded; start again")
    return OpenedModel(
        bundle,
        model.tokenizer_json,
        model.tokenizer,
        why_fallback,
        engine=engine,
        multi_slot_engine=multi_slot_engine,
    )


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
