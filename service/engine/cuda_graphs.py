"""CUDA graphs: small batches on a GPU in a few fixed shapes, captured once and replayed.

A single text is computed before its kernels have been launched one by one; a captured graph is launched as a whole (ONNX
Runtime, "Using CUDA Graphs"). It reads and writes the same memory each time, so inputs and output are bound to buffers, and
a batch is padded to its shape with made-up texts. A session with captured graphs must run on one thread, so it has its own.

T tokens and N texts of a shape, P head positions, K outputs at each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime

from bert.graph_inputs import Ints, Positions, flat_inputs
from bert.tokenizer import Encoding
from service.engine.models import Floats
from service.engine.sample_texts import sample_text
from service.logs import LOGGER

TOKENS = (32, 64, 128, 256, 512)
"""Token counts of the shapes."""
TEXTS = (2, 9)
"""Text counts of the shapes: one or up to eight real texts, and one for padding."""
ALIGNED_ELEMENTS = 64
"""Alignment of each input's buffer in numbers of 4 bytes: 256 bytes, as CUDA's own."""
WARM_UP_RUNS = 3
"""Runs after which a graph is captured; ONNX Runtime needs fewer."""
TIMED_RUNS = 5
MAX_DIFFERENCE = 1e-2
"""Maximum distance of a replayed output from the session's own; both are float16."""
RunGraph = Callable[[Mapping[str, Ints]], Floats]


@dataclass(frozen=True, slots=True, order=True)
class BatchShape:
    """Size of a captured batch."""

    tokens: int
    texts: int

    def padding(self, lengths: Sequence[int]) -> list[int] | None:
        """Return the lengths of the texts that pad a batch to this shape; None if it does not fit."""
        texts, tokens = self.texts - len(lengths), self.tokens - sum(lengths)
        if texts == tokens == 0:
            return []
        # No text may be empty.
        return [1] * (texts - 1) + [tokens - texts + 1] if 0 < texts <= tokens else None


def shapes(max_tokens: int) -> list[BatchShape]:
    """Return the shapes for a model that reads `max_tokens`, cheapest first."""
    return sorted(BatchShape(tokens, texts) for tokens in TOKENS if tokens <= max_tokens for texts in TEXTS)


def fixed_inputs(
    encodings: Sequence[Encoding],
    heads: Sequence[Positions],
    shape: BatchShape,
    padding: Sequence[int],
    head_positions: int,
) -> dict[str, Ints]:
    """Return the inputs of layout "flat" in a shape; `positions` is padded with 0 to `head_positions`."""
    fillers = [sample_text(length) for length in padding]
    inputs = flat_inputs([*encodings, *fillers], heads, longest=shape.tokens)
    positions = np.zeros(head_positions, np.int32)
    positions[: len(inputs["positions"])] = inputs["positions"]
    return {**inputs, "positions": positions}


class _CapturedShape:
    """The graph of one shape with its bound buffers. Used by one thread."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: str,
        graph_id: int,
        inputs: Mapping[str, Ints],
        width: int,
    ) -> None:
        """Allocate buffers for inputs of these sizes and an output of `width` columns."""
        self._session, self._options = session, onnxruntime.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(graph_id))
        self._binding = session.io_binding()
        # All inputs in one buffer, because each copy to the device blocks.
        starts, size = {}, 0
        for name in (node.name for node in session.get_inputs()):
            starts[name] = size
            size += -(-inputs[name].size // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
        self._host = np.zeros(size, np.int32)
        self._device = onnxruntime.OrtValue.ortvalue_from_numpy(self._host, device, 0)
        self._host_inputs: dict[str, Ints] = {}
        for name, start in starts.items():
            shape, pointer = inputs[name].shape, self._device.data_ptr() + 4 * start
            self._host_inputs[name] = self._host[start : start + inputs[name].size].reshape(shape)
            self._binding.bind_input(name, device, 0, np.int32, shape, pointer)
        rows = [len(inputs["positions"]), width]
        self._output = onnxruntime.OrtValue.ortvalue_from_shape_and_type(rows, np.float32, device, 0)
        self._binding.bind_ortvalue_output(session.get_outputs()[0].name, self._output)

    def run(self, inputs: Mapping[str, Ints]) -> Floats:
        """Return the output (P, K)."""
        for name, buffer in self._host_inputs.items():
            buffer[...] = inputs[name]
        self._device.update_inplace(self._host)
        self._session.run_with_iobinding(self._binding, self._options)
        found: Floats = self._output.numpy()
        return found.copy()  # on a CPU it is the buffer itself


class CapturedGraphs:
    """Captured shapes that were verified and measured to be faster."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        uncaptured: RunGraph,
        max_tokens: int,
        device: str,
        *,
        vocab_size: int,
        one_position_per_text: bool,
    ) -> None:
        """Capture each shape; `uncaptured` runs the same graph the usual way.

        Skip shapes that fail to capture, differ in output or are not faster; log each.
        """
        self._session, self._device = session, device
        self._vocab_size, self._one_position_per_text = vocab_size, one_position_per_text
        self._width = session.get_outputs()[0].shape[-1]
        self._captured: dict[BatchShape, _CapturedShape] = {}
        self._thread = ThreadPoolExecutor(1, "captured")
        for graph_id, shape in enumerate(shapes(max_tokens), 1):
            try:
                self._thread.submit(self._capture, shape, graph_id, uncaptured).result()
            except Exception as error:  # onnxruntime raises its own, undocumented classes
                LOGGER.warning("a batch of %s is not captured: %s", shape, error)
                break
        LOGGER.info(
            "%d of %d shapes of small batches are replayed", len(self._captured), len(shapes(max_tokens))
        )

    @property
    def shapes(self) -> list[BatchShape]:
        """Return the shapes in use."""
        return list(self._captured)

    def run(self, encodings: Sequence[Encoding], heads: Sequence[Positions]) -> tuple[Floats, int] | None:
        """Return the head's output (P, K) at the positions of `heads`, and the tokens computed; None if no shape fits."""
        lengths = [len(encoding) for encoding in encodings]
        for shape, captured in self._captured.items():
            if (padding := shape.padding(lengths)) is not None:
                inputs = fixed_inputs(encodings, heads, shape, padding, self._head_positions(shape))
                output = self._thread.submit(captured.run, inputs).result()
                return output[: sum(map(len, heads))], shape.tokens
        return None

    def _head_positions(self, shape: BatchShape) -> int:
        return shape.texts if self._one_position_per_text else shape.tokens

    def _sample(self, tokens: int) -> tuple[Encoding, Positions]:
        """Return a text of random pieces and its head positions."""
        ids = np.random.default_rng(tokens).integers(0, self._vocab_size, tokens).astype(np.int32)
        zeros = np.zeros(tokens, np.int32)
        head = np.zeros(1, np.int32) if self._one_position_per_text else np.arange(tokens)
        return Encoding(ids, zeros, np.zeros((tokens, 2), np.int32), zeros, zeros), head

    def _padded(self, shape: BatchShape, text: Encoding, head: Positions) -> dict[str, Ints]:
        padding = shape.padding([len(text)])
        assert padding is not None
        return fixed_inputs([text], [head], shape, padding, self._head_positions(shape))

    def _capture(self, shape: BatchShape, graph_id: int, uncaptured: RunGraph) -> None:
        """Capture a shape and keep it if its output is right and it is faster.

        The check uses another, longer text than the capture, which exposes a graph that replays its captured inputs. The
        timing uses the shortest text for which the shape is chosen.
        """
        first = self._padded(shape, *self._sample(shape.tokens // 4))
        text, head = self._sample(shape.tokens // 2)
        other = self._padded(shape, text, head)
        captured = _CapturedShape(self._session, self._device, graph_id, first, self._width)
        for _ in range(WARM_UP_RUNS):
            captured.run(first)
        distance = max(_distance(captured.run(inputs), uncaptured(inputs)) for inputs in (other, first))
        runs = (captured.run, other), (uncaptured, flat_inputs([text], [head]))
        captured_s, uncaptured_s = (
            min(_seconds(run, inputs) for _ in range(TIMED_RUNS)) for run, inputs in runs
        )
        if not distance <= MAX_DIFFERENCE:
            LOGGER.warning(
                "%s is not used: captured, its output is %g away from the session's", shape, distance
            )
        elif captured_s < uncaptured_s:
            self._captured[shape] = captured


def _distance(found: Floats, expected: Floats) -> float:
    """Return the largest difference, relative to the largest value if that is above 1; nan if a value is nan."""
    return float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))


def _seconds(run: RunGraph, inputs: Mapping[str, Ints]) -> float:
    start = time.perf_counter()
    run(inputs)
    return time.perf_counter() - start
