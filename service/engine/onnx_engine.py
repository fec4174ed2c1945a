"""The engine of one bundle: an ONNX Runtime session that runs whole batches, called from worker threads."""

import io
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bert.bundle import Bundle
from bert.errors import BundleError, EngineError, OutOfMemoryError
from bert.graph_inputs import Packer, Positions, split
from bert.manifest import PROVIDER_OF_LAYOUT
from bert.packing import CostModel, PackingRules
from bert.runtime import OPTIMIZATION_LEVEL, check_output, open_session, session_options
from bert.tasks.registry import TASKS
from bert.tasks.task import Head
from bert.tokenizer import Encoding
from service.engine.cuda_graphs import BatchShape, CapturedGraphs
from service.engine.models import Floats, Outputs
from service.engine.sample_texts import WARM_UP_TOKENS, sample_text
from service.logs import LOGGER

NO_MEMORY = re.compile("bad_alloc|Failed to allocate memory|smaller than requested bytes|Unable to allocate")
"""Messages of onnxruntime and numpy where they get no memory."""
_OPENING_ON_GPU = threading.Lock()
_TABLES: WeakValueDictionary[str, onnxruntime.OrtValue] = WeakValueDictionary()
"""sha256 → table, while an engine holds it."""
_LOADING_TABLE = threading.Lock()


class OnnxEngine:
    """A bundle's graph in an ONNX Runtime session. P head positions of a text, K outputs at each."""

    def __init__(
        self,
        bundle: Bundle,
        threads: int,
        *,
        spin: bool = False,
        capture_graphs: bool = False,
        gpu_slots: AbstractContextManager[object] | None = None,
    ) -> None:
        """Open the graph with `threads` threads; raises BundleError if this machine cannot run it.

        With `spin` the threads busy-wait for one another, for an engine that runs alone. With `capture_graphs` a GPU
        replays small batches (see `cuda_graphs`) from a second copy of the weights. There each run holds one of
        `gpu_slots`, which engines share.
        """
        manifest = bundle.manifest
        self.provider = provider_of(bundle)
        self._flat = manifest.layout == "flat"
        self._slots = gpu_slots if self._flat and gpu_slots is not None else nullcontext()
        self._task = TASKS[manifest.task.task]
        prompt, rules = manifest.task.label_prompt, PackingRules(**manifest.packing)
        label_width = prompt.width if prompt is not None and prompt.has_encoder else 0
        self._packer = Packer(manifest.layout, rules, manifest.expected_cost, label_width)
        level = manifest.session.get("graph_optimization_level", OPTIMIZATION_LEVEL)
        options = session_options(threads, manifest.layout, level, spinning=spin)
        self._tables = {} if self._flat else shared_tables(bundle)
        for name, table in self._tables.items():
            options.add_initializer(name, table)
        # While a graph is captured no other thread may touch the GPU's memory.
        with _OPENING_ON_GPU if self._flat else nullcontext():
            self._open(bundle, options)
            self._packer = replace(self._packer, reads_chunks="chunk_ids" in self._inputs)
            self._captured = self._capture(bundle, options) if capture_graphs and self._flat else None

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Pack, run, unpack. Raises OutOfMemoryError if there is no memory for the batch, EngineError if the graph fails."""
        try:
            return self._run(encodings)
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            tokens = sum(len(encoding) for encoding in encodings)
            if not (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))):
                raise EngineError(f"the graph failed on {tokens} tokens: {error}") from error
            failure = OutOfMemoryError(tokens)
        self._release_memory()
        raise failure

    def _run(self, encodings: Sequence[Encoding]) -> Outputs:
        positions = [self._task.head_positions(encoding) for encoding in encodings]
        replayed = self._replay(encodings, positions)
        if replayed is not None:
            output, computed_tokens = replayed
            found = [self._task.shorten(each) for each in split(output, list(map(len, positions)))]
        else:
            rows = [self._task.output_rows(encoding) for encoding in encodings]
            found, computed_tokens = self._packer.run(
                encodings, positions, self._compute, rows, self._task.shorten
            )
        tokens = sum(len(encoding) for encoding in encodings)
        return Outputs(found, 1.0 - tokens / computed_tokens)

    @property
    def captured_shapes(self) -> list[BatchShape]:
        """Shapes of small batches that are replayed; none on a CPU."""
        return self._captured.shapes if self._captured is not None else []

    def set_cost(self, cost: CostModel) -> None:
        """Pack by this model from now on."""
        self._packer = replace(self._packer, cost=cost)

    def _open(self, bundle: Bundle, options: onnxruntime.SessionOptions) -> None:
        """Open the session; raises BundleError if it runs elsewhere or its output is not the manifest's."""
        try:
            self._session = open_session(bundle.model_path, self.provider, options)
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            hint = "; a GPU's session needs CUDA 13 and its driver (docs/operations.md)" if self._flat else ""
            raise BundleError(f"{bundle.model_path} cannot be opened: {error}{hint}") from error
        output = self._session.get_outputs()[0]
        check_output(bundle.manifest, output.name, output.shape[-1])
        self._output = output.name
        self._inputs = {node.name for node in self._session.get_inputs()}

    def _capture(self, bundle: Bundle, options: onnxruntime.SessionOptions) -> CapturedGraphs | None:
        """Capture small batches; None if there is nothing to replay."""
        if self._task.head is Head.VOCABULARY:  # its output buffers would fill the memory
            return None
        try:
            session = open_session(bundle.model_path, self.provider, options, enable_cuda_graph="1")
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            LOGGER.warning("%s runs without captured graphs: %s", bundle.folder, error)
            return None
        graphs = CapturedGraphs(
            session,
            self._run_session,
            bundle.manifest.max_position_embeddings,
            "cuda",
            vocab_size=bundle.manifest.vocab_size,
            one_position_per_text=self._task.has_one_position,
        )
        return graphs if graphs.shapes else None  # frees the second copy of the weights

    def _replay(
        self, encodings: Sequence[Encoding], positions: Sequence[Positions]
    ) -> tuple[Floats, int] | None:
        """Return the output of a captured batch and its computed tokens; None if none fits."""
        if self._captured is None:
            return None
        try:
            return self._captured.run(encodings, positions)
        except Exception:  # whatever it was: the session beside it is sound
            LOGGER.exception("captured graphs failed and are not used any more")
            self._captured = None
            return None

    def _compute(self, inputs: Mapping[str, NDArray[Any]]) -> Floats:
        """Run the graph."""
        with self._slots:
            return self._run_session(inputs)

    def _release_memory(self) -> None:
        """Free what the arena keeps for later runs; onnxruntime does so at the end of a run that asks for it."""
        options = onnxruntime.RunOptions()
        options.add_run_config_entry(
            "memory.enable_memory_arena_shrinkage", "gpu:0" if self._flat else "cpu:0"
        )
        text = sample_text(WARM_UP_TOKENS)

        def compute(inputs: Mapping[str, NDArray[Any]]) -> Floats:
            return self._run_session(inputs, options)

        with suppress(Exception):  # there is no memory for this either
            self._packer.run([text], [self._task.head_positions(text)], compute)

    def _run_session(
        self, inputs: Mapping[str, NDArray[Any]], options: onnxruntime.RunOptions | None = None
    ) -> Floats:
        read = {name: inputs[name] for name in self._inputs}
        found: Floats = self._session.run([self._output], read, options)[0]
        return found


def provider_of(bundle: Bundle) -> str:
    """Return the provider that the graph was verified on, whatever else this machine has.

    Raises BundleError if the manifest names another, or this onnxruntime lacks it.
    """
    manifest = bundle.manifest
    verified = PROVIDER_OF_LAYOUT[manifest.layout]
    providers = manifest.session.get("providers", [verified])
    if providers != [verified]:
        raise BundleError(
            f"{bundle.folder} says session.providers {providers}; with the layout {manifest.layout!r} it was verified "
            f"on {[verified]}"
        )
    available = onnxruntime.get_available_providers()
    if verified not in available:
        raise BundleError(
            f"{bundle.folder} is for a GPU ({verified}), and this onnxruntime has only "
            f"{', '.join(available)}: install onnxruntime-gpu, or export the model for the CPU with bert-export"
        )
    return verified


def shared_tables(bundle: Bundle) -> dict[str, onnxruntime.OrtValue]:
    """Return a bundle's tables by the names of the graph's initializers; the session's owner must hold them.

    A table in memory is not read again. Raises BundleIntegrityError if a file's hash is not the manifest's.
    """
    return {name: _table(bundle, file) for name, file in bundle.tables.items()}


def _table(bundle: Bundle, name: str) -> onnxruntime.OrtValue:
    sha256 = bundle.manifest.files[name]
    with _LOADING_TABLE:
        table = _TABLES.get(sha256)
        if table is None:
            array = np.load(io.BytesIO(bundle.read(name)), allow_pickle=False)
            table = _TABLES[sha256] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return table
