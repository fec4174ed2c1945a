"""Loading of bundles: files are read and checked, graphs are opened and tested."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from bert.bundle import LABELS_TOKENIZER, QUERY_WEIGHTS, TOKENIZER, Bundle, manifest_sha256, read_bundle
from bert.errors import BertError, BundleError, BundleIntegrityError, EngineError
from bert.processor import instructions
from bert.runtime import share_memory_arena
from bert.self_test import SELF_TEST, SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tokenizer import Tokenizer
from service.engine.bundle_folders import FileStates, FoundBundles, all_on_gpu, file_states, readable_part
from service.engine.label_engine import LabelEngine
from service.engine.models import Engine, Model, OpenedModel, PackingEngine, SkippedBundle
from service.engine.onnx_engine import OnnxEngine
from service.engine.sample_texts import WARM_UP_TOKENS, sample_texts
from service.engine.slot_layout import GPU_SLOTS, SlotLayout
from service.logs import LOGGER
from service.settings import ServeSettings

OpenEngine = Callable[[Bundle], PackingEngine]
LABEL_TOKENS = 5
"""Length in tokens of the label that a model runs first, where labels have an encoder of their own."""
MAX_MULTI_SLOT_BYTES = 2**29
"""Maximum size of a graph that is held in memory a second time."""


class BundleLoader:
    """Opens the bundles that a service found."""

    def __init__(
        self,
        found: FoundBundles,
        *,
        threads: int,
        multi_slot_threads: int = 1,
        capture_graphs: bool = False,
        verify_hashes: bool = True,
        failed_models: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet. `failed_models` have no bundle: name → reason.

        With `multi_slot_threads` above 1 models on the CPU have a second session with that many threads, unless they are
        large. `capture_graphs` is for models on a GPU.
        """
        share_memory_arena()
        self._found, self._verify_hashes = found, verify_hashes
        self._multi_slot_threads, self._capture_graphs = multi_slot_threads, capture_graphs
        self.failed = [SkippedBundle(name, "", reason) for name, reason in (failed_models or {}).items()]
        """Models without a bundle."""
        # Beside models on the CPU there are as many slots as cores, and each batch on a GPU takes memory of its own.
        gpu_slots = nullcontext() if all_on_gpu(found) else BoundedSemaphore(GPU_SLOTS)
        self._open_engine = partial(OnnxEngine, threads=threads, gpu_slots=gpu_slots)
        self.tried: dict[Path, FileStates] = {}
        """Files of each folder when it was last opened."""
        self.hashes: dict[Path, str] = {}
        """Hash of the manifest in each folder when it was last opened."""

    @classmethod
    def of(cls, settings: ServeSettings, layout: SlotLayout, found: FoundBundles) -> "BundleLoader":
        """Return a loader with a service's settings."""
        return cls(
            found,
            threads=layout.threads,
            multi_slot_threads=layout.slots_for_one_text if settings.engine_wide else 1,
            capture_graphs=settings.engine_captures,
            verify_hashes=settings.verify_hashes,
            failed_models=settings.failed_models,
        )

    def load(
        self, workers: int, *, strict: bool = False, sources: Mapping[Path, Path] | None = None
    ) -> dict[Path, OpenedModel | SkippedBundle]:
        """Open all bundles, `workers` at a time; those that have `sources` from there.

        A bundle that fails is skipped with the error's message as the reason. With `strict`, or if no bundle is left, the
        error is raised.
        """

        def load(folder: Path) -> OpenedModel | SkippedBundle:
            source = (sources or {}).get(folder, folder)
            try:
                model = self.open(source, capture_graphs=self._capture_graphs)
                self.hashes[folder] = self.hashes[source]
                return model
            except Exception as error:
                if strict:
                    raise
                return self.skipped(folder, error)

        with ThreadPoolExecutor(workers, "load") as pool:
            every = dict(zip(self._found, pool.map(load, self._found), strict=True))
        loaded = _without_duplicates(every, strict=strict)
        if self._found and not opened(loaded):
            skipped = [each for each in loaded.values() if isinstance(each, SkippedBundle)] + self.failed
            reasons = "; ".join(each.reason for each in skipped)
            count = len(skipped)
            raise BundleError(reasons if count == 1 else f"none of {count} bundles is left: {reasons}")
        return loaded

    def open(self, folder: Path, *, capture_graphs: bool = False) -> OpenedModel:
        """Open one bundle; raises BundleError or EngineError.

        While others are served it cannot have CUDA graphs: no batch may run on the GPU while one is captured.
        """
        files = self.tried[folder] = file_states(folder)
        bundle = read_bundle(folder, verify_hashes=self._verify_hashes)
        self.hashes[folder] = manifest_sha256(folder)
        labels = bundle.read(LABELS_TOKENIZER) if bundle.labels is not None else b""
        table = bundle.read(QUERY_WEIGHTS) if bundle.manifest.task.query_weights else b""
        model = Model.of(bundle, bundle.read(TOKENIZER), labels_json=labels, query_weights=table)
        open_engine = partial(self._open_engine, capture_graphs=capture_graphs)
        bundle, engine, why_fallback = open_tested(bundle, model.tokenizer, open_engine)
        multi_slot_engine = self._multi_slot_engine(bundle)
        if bundle.labels is not None and model.labels is not None:
            tokenizer = model.labels.tokenizer
            _, of_labels, why_of_labels = open_tested(bundle.labels, tokenizer, self._open_engine)
            why_fallback = why_fallback or why_of_labels
            of_labels.run(sample_texts(LABEL_TOKENS))
            engine = LabelEngine(engine, of_labels)
            multi_slot_engine = multi_slot_engine and LabelEngine(multi_slot_engine, of_labels)
        engine.run(sample_texts(WARM_UP_TOKENS))
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
            model.labels,
            model.query_weights,
            engine=engine,
            multi_slot_engine=multi_slot_engine,
        )

    def _multi_slot_engine(self, bundle: Bundle) -> PackingEngine | None:
        is_large = bundle.model_path.stat().st_size > MAX_MULTI_SLOT_BYTES
        if self._multi_slot_threads == 1 or bundle.manifest.layout == "flat" or is_large:
            return None
        return OnnxEngine(bundle, self._multi_slot_threads, spin=True)

    def skipped(self, folder: Path, error: Exception) -> SkippedBundle:
        """Describe a bundle that could not be loaded."""
        reason = str(error) if isinstance(error, BertError) else f"{folder} cannot be loaded: {error!r}"
        part = readable_part(folder, self._found.get(folder))
        return SkippedBundle(part.name, part.task, reason)


def opened(loaded: Mapping[Path, Model | SkippedBundle]) -> list[OpenedModel]:
    """Return the models that could be opened, in the order of their folders."""
    return [each for each in loaded.values() if isinstance(each, OpenedModel)]


def _without_duplicates(
    found: Mapping[Path, OpenedModel | SkippedBundle], *, strict: bool
) -> dict[Path, OpenedModel | SkippedBundle]:
    """Skip a model with the name of an earlier one; raises BundleError for it if `strict`."""
    kept = dict[Path, OpenedModel | SkippedBundle]()
    for folder, each in found.items():
        error = duplicate_error(each, kept.values())
        if error is not None and strict:
            raise error
        kept[folder] = each if error is None else SkippedBundle(each.name, each.task, str(error))
    return kept


def duplicate_error(
    model: Model | SkippedBundle, others: Iterable[Model | SkippedBundle]
) -> BundleError | None:
    """Return an error if one of the others is a model with the same name and version."""
    for other in others:
        if (
            isinstance(model, Model)
            and isinstance(other, Model)
            and model.name == other.name
            and model.bundle.manifest.version == other.bundle.manifest.version
        ):
            return BundleError(
                f"two bundles have the name {model.name!r} and version {model.bundle.manifest.version!r}: "
                f"{other.bundle.folder} and {model.bundle.folder}; export one by another --name or --version"
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
            f"{bundle.model_path} ({bundle.manifest.precision}) gives different outputs on this processor "
            f"({instructions()}) than where it was exported ({expected.instructions}): "
            f"a relative error of {max(errors):.2g} on its own {len(expected.texts)} texts, and {allowed:.2g} is allowed; "
            "export it on this machine, or with --precision fp32"
        )
