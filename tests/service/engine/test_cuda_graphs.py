"""CUDA graphs: everything but the capture itself, which needs a GPU, on a CPU session."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bert.graph_inputs import Ints, flat_inputs
from bert.tokenizer import Encoding
from service.engine import cuda_graphs
from service.engine.cuda_graphs import BatchShape, CapturedGraphs, fixed_inputs, shapes
from service.engine.models import Floats

VOCAB, POSITIONS, WIDTH = 50, 128, 3
INPUTS = (
    "input_ids",
    "segment_ids",
    "position_ids",
    "text_ids",
    "positions",
    "token_offset",
    "cumulative_lengths",
)


def graph() -> bytes:
    """At each position its token and the sum of its own text's: whatever leaks from another text shows."""
    chance = np.random.default_rng(0)
    tables = {
        "words": chance.standard_normal((VOCAB, WIDTH)), "kinds": chance.standard_normal((2, WIDTH)),
        "places": chance.standard_normal((POSITIONS, WIDTH)),
    }  # fmt: skip
    values = {**{name: table.astype(np.float32) for name, table in tables.items()}, "row": np.array([0])}
    values |= {"column": np.array([1]), "nothing": np.array(0, np.float32)}
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["a"]), node("Gather", ["kinds", "segment_ids"], ["b"]),
        node("Gather", ["places", "position_ids"], ["c"]), node("Sum", ["a", "b", "c"], ["x"]),
        node("Unsqueeze", ["text_ids", "row"], ["across"]), node("Unsqueeze", ["text_ids", "column"], ["down"]),
        node("Equal", ["across", "down"], ["same"]), node("Cast", ["same"], ["member"], to=TensorProto.FLOAT),
        node("MatMul", ["member", "x"], ["sums"]), node("Add", ["sums", "x"], ["each"]),
        node("Gather", ["each", "positions"], ["at"]),
        node("Cast", ["token_offset"], ["o"], to=TensorProto.FLOAT), node("ReduceSum", ["o"], ["p"], keepdims=0),
        node("Cast", ["cumulative_lengths"], ["l"], to=TensorProto.FLOAT), node("ReduceSum", ["l"], ["q"], keepdims=0),
        node("Sum", ["p", "q"], ["r"]), node("Mul", ["r", "nothing"], ["s"]), node("Add", ["at", "s"], ["logits"]),
    ]  # fmt: skip
    dims: dict[str, list[str]] = {name: ["tokens"] for name in INPUTS[:4]}
    dims |= {
        "positions": ["places"],
        "token_offset": ["texts", "longest"],
        "cumulative_lengths": ["texts_and_1"],
    }
    made = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info(name, TensorProto.INT32, dims[name]) for name in INPUTS],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["places", WIDTH])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model: onnx.ModelProto = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(graph(), providers=["CPUExecutionProvider"])


def plain_of(session: onnxruntime.InferenceSession) -> cuda_graphs.RunGraph:
    def plain(inputs: Mapping[str, Ints]) -> Floats:
        found: Floats = session.run(None, dict(inputs))[0]
        return found

    return plain


def text(length: int, seed: int = 0) -> Encoding:
    chance = np.random.default_rng([seed, length])
    ids, kinds = (chance.integers(0, most, length).astype(np.int32) for most in (VOCAB, 2))
    return Encoding(ids, kinds, np.zeros((length, 2), np.int32), kinds, kinds)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape is faster."""
    monkeypatch.setattr(cuda_graphs, "_seconds", lambda run, _: float(run.__name__ == "plain"))


def made(session: onnxruntime.InferenceSession, *, one_position_per_text: bool = True) -> CapturedGraphs:
    return CapturedGraphs(
        session,
        plain_of(session),
        POSITIONS,
        "cpu",
        vocab_size=VOCAB,
        one_position_per_text=one_position_per_text,
    )


@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.sampled_from(shapes(512)))
def test_padding_completes_the_shape_and_has_no_empty_text(lengths: list[int], shape: BatchShape) -> None:
    padding = shape.padding(lengths)
    fits = len(lengths) < shape.texts and sum(lengths) + shape.texts - len(lengths) <= shape.tokens
    exact = (len(lengths), sum(lengths)) == (shape.texts, shape.tokens)
    assert (padding is not None) == (fits or exact)
    if padding is not None:
        assert len(lengths) + len(padding) == shape.texts and sum(lengths) + sum(padding) == shape.tokens
        assert all(length > 0 for length in padding)


def test_no_shape_is_longer_than_the_model_reads() -> None:
    assert {shape.tokens for shape in shapes(128)} == {32, 64, 128}
    assert shapes(128)[0] == BatchShape(32, 2)


def test_every_batch_of_a_shape_has_inputs_of_one_size() -> None:
    shape, sizes = BatchShape(64, 9), set()
    for lengths in ([5], [20, 30], [3] * 8):
        padding = shape.padding(lengths)
        assert padding is not None
        heads = [np.arange(length) for length in lengths]
        inputs = fixed_inputs([text(length) for length in lengths], heads, shape, padding, 64)
        sizes.add(tuple((name, inputs[name].shape, inputs[name].dtype.name) for name in INPUTS))
        assert sorted(inputs["token_offset"].ravel().tolist()) == list(range(9 * 64))
    assert len(sizes) == 1


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("one_position_per_text", [True, False])
@pytest.mark.parametrize("lengths", [[16], [31], [1], [100], [7, 3], [10] * 8, [1] * 8, [127]])
def test_a_small_batch_has_the_outputs_of_the_session_itself(
    session: onnxruntime.InferenceSession, lengths: list[int], one_position_per_text: bool
) -> None:
    graphs = made(session, one_position_per_text=one_position_per_text)
    assert graphs.shapes == shapes(POSITIONS)
    for seed in range(2):  # the buffers are used again
        texts = [text(length, seed + number) for number, length in enumerate(lengths)]
        heads = [
            np.zeros(1, np.int32) if one_position_per_text else np.arange(1, len(each), 2) for each in texts
        ]
        found = graphs.run(texts, heads)
        assert found is not None
        output, computed = found
        assert np.allclose(output, plain_of(session)(flat_inputs(texts, heads)), atol=1e-5)
        assert computed >= sum(lengths) and computed in cuda_graphs.TOKENS


@pytest.mark.usefixtures("always")
def test_a_batch_that_fits_no_shape_is_not_replayed(session: onnxruntime.InferenceSession) -> None:
    graphs, head = made(session), [np.zeros(1, np.int32)]
    assert graphs.run([text(128)], head) is None
    assert graphs.run([text(2)] * 10, head * 10) is None


def test_a_shape_that_is_not_faster_is_skipped(
    session: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "_seconds", lambda run, _: 1.0)
    assert made(session).shapes == []


@pytest.mark.usefixtures("always")
def test_a_shape_that_replays_its_captured_output_is_skipped(
    session: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, first = cuda_graphs._CapturedShape.run, dict[int, Floats]()
    monkeypatch.setattr(
        cuda_graphs._CapturedShape, "run", lambda self, inputs: first.setdefault(id(self), run(self, inputs))
    )
    assert made(session).shapes == []
    assert "away from the session's" in caplog.text


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("stale", ["input_ids", "position_ids", "text_ids", "positions"])
def test_a_shape_that_ignores_a_new_input_is_skipped(
    session: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    run, first = cuda_graphs._CapturedShape.run, dict[int, Ints]()

    def forgets(self: cuda_graphs._CapturedShape, inputs: Mapping[str, Ints]) -> Floats:
        return run(self, {**inputs, stale: first.setdefault(id(self), inputs[stale])})

    monkeypatch.setattr(cuda_graphs._CapturedShape, "run", forgets)
    assert made(session, one_position_per_text=False).shapes == []


def test_a_failed_capture_is_logged_and_skipped(
    session: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Floats:
        raise RuntimeError("no capture here")

    monkeypatch.setattr(cuda_graphs._CapturedShape, "run", fails)
    assert made(session).shapes == []
    assert "no capture here" in caplog.text
