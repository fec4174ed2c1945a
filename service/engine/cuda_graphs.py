"""Small batches on a GPU in a few fixed shapes: each is captured once as a CUDA graph, and replayed.

A lone text is over before its kernels have been launched one by one; a captured graph is launched as a whole (ONNX
Runtime, "Using CUDA Graphs"). It reads and writes the same places of memory each time, so inputs and output are bound to
buffers, and a batch is filled up to its shape with texts that nobody asked for. All runs of one session with captured graphs
belong on one thread: here it is a thread of their own, and a session of their own.

T tokens and N texts of a shape, K outputs at a position.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bert.packing import Ints, Positions, flat_inputs
from bert.tokenizer import Encoding
from service.logs import LOGGER

Floats = NDArray[np.float32]
TOKENS = (32, 64, 128, 256, 512)
TEXTS = (2, 9)
"""A lone text, and up to eight: one more for what fills up."""
ALIGNED = 64
"""Numbers of 4 bytes from one input's start to a place where the next may start: 256 bytes, as CUDA's own buffers."""
WARM_UPS = 3
"""Runs until a graph is captured: ONNX Runtime's own count is below it."""
NEAR = 1e-2
"""How far a replayed output may be from the session's own, float16 as both are."""
TIMED = 5
GRAPH_ID = "gpu_graph_id"
Plain = Callable[[Mapping[str, Ints]], Floats]
"""The same graph, run the usual way."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a captured graph computes, whatever of it was asked for."""

    tokens: int
    texts: int

    def filling(self, lengths: Sequence[int]) -> list[int] | None:
        """Return the lengths of the texts that fill up a batch, None if it does not fit."""
        texts, tokens = self.texts - len(lengths), self.tokens - sum(lengths)
        if texts == tokens == 0:
            return []
        # None of them may be empty.
        return [1] * (texts - 1) + [tokens - texts + 1] if 0 < texts <= tokens else None


def shapes(positions: int) -> list[Shape]:
    """Return the shapes for a model of so many positions, the cheapest first."""
    return sorted(Shape(tokens, texts) for tokens in TOKENS if tokens <= positions for texts in TEXTS)


def fixed_inputs(
    encodings: Sequence[Encoding],
    heads: Sequence[Positions],
    shape: Shape,
    filling: Sequence[int],
    places: int,
) -> dict[str, Ints]:
    """Return the inputs of the layout "flat" in a shape, `positions` (P,) filled up to so many `places` with 0."""
    nobody = [_empty(length) for length in filling]
    inputs = flat_inputs([*encodings, *nobody], heads, longest=shape.tokens)
    positions = np.zeros(places, np.int32)
    positions[: len(inputs["positions"])] = inputs["positions"]
    return {**inputs, "positions": positions}


def _empty(length: int) -> Encoding:
    zeros = np.zeros(length, np.int32)
    return Encoding(zeros, zeros, np.zeros((length, 2), np.int32), zeros, zeros)


class _Bound:
    """A shape's buffers and their binding. Used by one thread."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: str,
        number: int,
        inputs: Mapping[str, Ints],
        width: int,
    ) -> None:
        self._session, self._options = session, onnxruntime.RunOptions()
        self._options.add_run_config_entry(GRAPH_ID, str(number))
        self._binding = session.io_binding()
        # All inputs in one buffer: each copy to the device is waited for.
        starts, size = {}, 0
        for name in (node.name for node in session.get_inputs()):
            starts[name] = size
            size += -(-inputs[name].size // ALIGNED) * ALIGNED
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        self._host = np.zeros(size, np.int32)
        self._device = make(self._host, device, 0)
        self._places: dict[str, Ints] = {}
        for name, start in starts.items():
            shape, pointer = inputs[name].shape, self._device.data_ptr() + 4 * start
            self._places[name] = self._host[start : start + inputs[name].size].reshape(shape)
            self._binding.bind_input(name, device, 0, np.int32, shape, pointer)
        rows = [len(inputs["positions"]), width]
        self._output = onnxruntime.OrtValue.ortvalue_from_shape_and_type(rows, np.float32, device, 0)
        self._binding.bind_ortvalue_output(session.get_outputs()[0].name, self._output)

    def run(self, inputs: Mapping[str, Ints]) -> Floats:
        """Return the output (P, K)."""
        for name, place in self._places.items():
            place[...] = inputs[name]
        self._device.update_inplace(self._host)
        self._session.run_with_iobinding(self._binding, self._options)
        found: Floats = self._output.numpy()
        return found.copy()  # on a CPU it is the buffer itself


class CapturedGraphs:
    """The shapes that were captured, tried, and found right and faster."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        plain: Plain,
        positions: int,
        device: str,
        *,
        pieces: int,
        one_a_text: bool,
    ) -> None:
        """Capture; `positions` and `pieces` are the model's, `one_a_text` says that the head looks at one token of a text.

        What cannot be captured, or answers otherwise, or is no faster than `plain`, is told in the log and left out.
        """
        self._session, self._device, self._pieces, self._one_a_text = session, device, pieces, one_a_text
        self._width = session.get_outputs()[0].shape[-1]
        self._bound: dict[Shape, _Bound] = {}
        self._thread = ThreadPoolExecutor(1, "captured")
        for number, shape in enumerate(shapes(positions), 1):
            try:
                self._thread.submit(self._capture, shape, number, plain).result()
            except Exception as error:  # onnxruntime raises its own, undocumented classes
                LOGGER.warning("a batch of %s is not captured: %s", shape, error)
                break
        LOGGER.info("%d of %d shapes of small batches are replayed", len(self._bound), len(shapes(positions)))

    @property
    def shapes(self) -> list[Shape]:
        """Return those that are used."""
        return list(self._bound)

    def run(self, encodings: Sequence[Encoding], heads: Sequence[Positions]) -> tuple[Floats, int] | None:
        """Return the head's output (P, K) at the positions of `heads`, and the tokens computed; None if no shape fits."""
        lengths = [len(encoding) for encoding in encodings]
        for shape, bound in self._bound.items():
            if (filling := shape.filling(lengths)) is not None:
                inputs = fixed_inputs(encodings, heads, shape, filling, self._places(shape))
                output = self._thread.submit(bound.run, inputs).result()
                return output[: sum(map(len, heads))], shape.tokens
        return None

    def _places(self, shape: Shape) -> int:
        return shape.texts if self._one_a_text else shape.tokens

    def _sample(self, tokens: int) -> tuple[Encoding, Positions]:
        """Make a text of so many tokens, any pieces, and say where its head looks."""
        ids = np.random.default_rng(tokens).integers(0, self._pieces, tokens).astype(np.int32)
        zeros = np.zeros(tokens, np.int32)
        head = np.zeros(1, np.int32) if self._one_a_text else np.arange(tokens)
        return Encoding(ids, zeros, np.zeros((tokens, 2), np.int32), zeros, zeros), head

    def _filled(self, shape: Shape, text: Encoding, head: Positions) -> dict[str, Ints]:
        filling = shape.filling([len(text)])
        assert filling is not None
        return fixed_inputs([text], [head], shape, filling, self._places(shape))

    def _capture(self, shape: Shape, number: int, plain: Plain) -> None:
        """Capture a shape and keep it if it is right and faster.

        It is tried on another and longer text than it was captured with: a graph that reads what it read then is found
        out. In time it is compared with the session on the shortest text for which the shape is taken.
        """
        text, head = self._sample(shape.tokens // 2)
        captured, other = (
            self._filled(shape, *self._sample(shape.tokens // 4)),
            self._filled(shape, text, head),
        )
        bound = _Bound(self._session, self._device, number, captured, self._width)
        for _ in range(WARM_UPS):
            bound.run(captured)
        far = max(_distance(bound.run(inputs), plain(inputs)) for inputs in (other, captured))
        runs = (bound.run, other), (plain, flat_inputs([text], [head]))
        replayed_s, plain_s = (min(_seconds(run, inputs) for _ in range(TIMED)) for run, inputs in runs)
        if not far <= NEAR:
            LOGGER.warning("%s is not used: captured, its output is %g away from the session's", shape, far)
        elif replayed_s < plain_s:
            self._bound[shape] = bound


def _distance(found: Floats, expected: Floats) -> float:
    """Return the largest difference, as a share of the largest value where that is above 1; nan for what is no number."""
    return float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))


def _seconds(run: Plain, inputs: Mapping[str, Ints]) -> float:
    start = time.perf_counter()
    run(inputs)
    return time.perf_counter() - start
