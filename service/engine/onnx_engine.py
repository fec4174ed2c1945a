"""The engine: one ONNX Runtime session for each bundle, given whole batches on threads that are not the event
loop's.

N texts, P head positions, K outputs at each, H width.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bert.bundle import Bundle
from bert.errors import BundleError, EngineError
from bert.manifest import PROVIDER_OF_LAYOUT
from bert.packing import Packer, PackingRules, Positions, flat_groups, split
from bert.runtime import OPTIMIZATION_LEVEL, open_session, session_options
from bert.tasks.registry import TASKS, check_output
from bert.tasks.task import Head
from bert.tokenizer import Encoding
from service.engine.cuda_graphs import CapturedGraphs
from service.engine.engine_protocol import Floats, Outputs
from service.engine.shared_tables import shared_tables
from service.logs import LOGGER

_OPENING = threading.Lock()
"""Of models on a GPU, one at a time."""


class OnnxEngine:
    """A bundle's graph in an ONNX Runtime session."""

    def __init__(
        self,
        bundle: Bundle,
        threads: int,
        *,
        has_cores_alone: bool = False,
        captures: bool = False,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        """Open the graph with `threads` threads; raises BundleError if this machine cannot run it.

        `has_cores_alone` where nothing else runs while it does: then its threads may wait for one another awake.
        `captures`: on a GPU, small batches are replayed (see `cuda_graphs`), from a second copy of the weights. Each run
        takes its `turn`, which several engines may share.
        """
        manifest = bundle.manifest
        self.provider = provider_of(bundle)
        self._turn: AbstractContextManager[object] = turn if turn is not None else nullcontext()
        self._flat = manifest.layout == "flat"
        self._task = TASKS[manifest.task.task]
        self._packer = Packer(manifest.layout, PackingRules(**manifest.packing), manifest.hidden_size)
        level = manifest.session.get("graph_optimization_level", OPTIMIZATION_LEVEL)
        options = session_options(threads, manifest.layout, level, spinning=has_cores_alone)
        self._tables = {} if self._flat else shared_tables(bundle)
        for name, table in self._tables.items():
            options.add_initializer(name, table)
        # While a graph is captured no other thread may touch the GPU's memory.
        with _OPENING if self._flat else nullcontext():
            self._open(bundle, options)
            self._captured = self._capture(bundle, options) if captures and self._flat else None

    def _open(self, bundle: Bundle, options: onnxruntime.SessionOptions) -> None:
        """Open the session; raises BundleError if it runs elsewhere or computes something else."""
        manifest = bundle.manifest
        try:
            self._session = open_session(bundle.model_path, self.provider, options)
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            hint = "; a GPU's session needs CUDA 13 and its driver (docs/operations.md)" if self._flat else ""
            raise BundleError(f"{bundle.model_path} cannot be opened: {error}{hint}") from error
        output = self._session.get_outputs()[0]
        check_output(manifest, output.name, output.shape[-1])
        self._output = output.name
        self._inputs = {node.name for node in self._session.get_inputs()}

    def _capture(self, bundle: Bundle, options: onnxruntime.SessionOptions) -> CapturedGraphs | None:
        """Capture what can be; a head over the whole vocabulary would fill the memory with buffers."""
        if self._task.head is Head.VOCABULARY:
            return None
        try:
            session = open_session(bundle.model_path, self.provider, options, enable_cuda_graph="1")
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            LOGGER.warning("%s runs without captured graphs: %s", bundle.folder, error)
            return None
        one_a_text = self._task.has_one_position
        manifest = bundle.manifest
        positions, pieces = manifest.max_position_embeddings, manifest.vocab_size
        graphs = CapturedGraphs(session, self._plain, positions, "cuda", pieces=pieces, one_a_text=one_a_text)
        return graphs if graphs.shapes else None  # or a second copy of the weights would be held for nothing

    def _replayed(
        self, encodings: Sequence[Encoding], heads: Sequence[Positions]
    ) -> tuple[Floats, int] | None:
        """Return the output of a small batch and the places computed, None if it is to be run the usual way."""
        if self._captured is None:
            return None
        try:
            return self._captured.run(encodings, heads)
        except Exception:  # whatever it was: the session beside it is sound
            LOGGER.exception("captured graphs failed and are not used any more")
            self._captured = None
            return None

    def _plain(self, inputs: Mapping[str, NDArray[np.int32]]) -> Floats:
        found: Floats = self._session.run([self._output], {name: inputs[name] for name in self._inputs})[0]
        return found

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Pack, run, unpack. Raises EngineError if the graph fails."""
        if self._flat:
            groups = flat_groups([len(encoding) for encoding in encodings])
            if len(groups) > 1:
                return self._in_groups(encodings, groups)
        heads = [self._task.head_positions(encoding) for encoding in encodings]
        replayed = self._replayed(encodings, heads)
        if replayed is not None:
            output, places = replayed
        else:
            inputs, places = self._packer.inputs(encodings, heads)
            try:
                with self._turn:
                    output = self._plain(inputs)
            except Exception as error:
                raise EngineError(f"the graph failed on {len(encodings)} texts: {error}") from error
        output = self._task.shorten(output)
        tokens = sum(len(encoding) for encoding in encodings)
        return Outputs(split(output, [len(head) for head in heads]), 1.0 - tokens / places)

    def _in_groups(self, encodings: Sequence[Encoding], groups: Sequence[Sequence[int]]) -> Outputs:
        """Run the texts at these places one group after the other."""
        found: list[Floats] = [np.empty(0, np.float32)] * len(encodings)
        for group in groups:
            for place, output in zip(group, self.run([encodings[n] for n in group]).texts, strict=True):
                found[place] = output
        return Outputs(found, 0.0)


def provider_of(bundle: Bundle) -> str:
    """Return the provider that the graph was verified on, whatever else this machine has.

    Raises BundleError where the manifest names another, or this onnxruntime lacks it.
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


def release_free_memory() -> None:
    """Give memory that was freed while models were loaded back to the system, where the C library can.

    glibc keeps what lies below a block in use: a sixth of the process with four models in float32.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
