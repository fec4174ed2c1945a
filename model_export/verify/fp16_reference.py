"""Runs a graph for CUDA without a GPU: the very graph that is written, operator by operator in numpy, in float16.

The fused operators follow ONNX Runtime's ContribOperators.md, not our forms. Sums run in float32, as on a GPU's tensor
cores, and every result is rounded to float16, as it is there when it goes to memory.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from bert.graph_inputs import flat_inputs, split
from bert.tasks.task import sigmoid
from model_export.graph.graph_builder import MICROSOFT
from model_export.numpy_bodies.body import Floats, erf
from model_export.verify.texts import EncodedText

Array = NDArray[Any]


_OPERATORS: list[type[OpRun]] = []


def _operator(name: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function an operator of the evaluator; it returns the operator's outputs as a tuple, or its only one."""

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        def run(_: OpRun, *inputs: Any, **attributes: Any) -> Any:
            found = compute(*inputs, **attributes)
            return found if isinstance(found, tuple) else (found,)

        _OPERATORS.append(type(name, (OpRun,), {"op_domain": domain, "_run": run}))
        return compute

    return add


@_operator("PackedMultiHeadAttention", MICROSOFT)
def _packed_multi_head_attention(
    query: Array, key: Array, value: Array, _: None, *inputs: Any, **attributes: Any
) -> Any:
    """Attention of texts that lie one after the other, projected already."""
    return _attend([_wide(x) for x in (query, key, value)], *inputs, heads=attributes["num_heads"])


@_operator("PackedAttention", MICROSOFT)
def _packed_attention(
    x: Array,
    weight: Array,
    bias: Array,
    offset: Array,
    ends: Array,
    attention_bias: Array | None = None,
    **attributes: Any,
) -> Any:
    """Attention of texts that lie one after the other."""
    joined = _wide(_half(_wide(x) @ _wide(weight) + _wide(bias)))
    parts = np.split(joined, 3, axis=-1)
    return _attend(parts, offset, ends, attention_bias, heads=attributes["num_heads"])


@_operator("RotaryEmbedding", MICROSOFT)
def _rotary_embedding(x: Array, places: Array, cos: Array, sin: Array, **attributes: Any) -> Any:
    """Rotation of each feature of a head's first half with one of its second; texts of one token, (T, 1, H)."""
    assert x.shape[:2] == places.shape and not attributes.get("interleaved")
    heads = _wide(x).reshape(*places.shape, attributes["num_heads"], -1)
    first, second = np.split(heads, 2, axis=-1)
    cosine, sine = (_wide(table)[places][:, :, None] for table in (cos, sin))
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return _half(np.concatenate(turned, axis=-1).reshape(x.shape))


@_operator("LayerNormalization")
def _layer_normalization(x: Array, scale: Array, shift: Array | None = None, **attributes: Any) -> Any:
    """The standard one: its sums are float32's also in float16."""
    shift = np.zeros(1, np.float32) if shift is None else shift
    return _norm(_wide(x), scale, shift, attributes["epsilon"], x.dtype)


@_operator("MultiHeadAttention", MICROSOFT)
def _multi_head_attention(
    query: Array, key: Array, value: Array, *inputs: Array | None, **attributes: Any
) -> Any:
    """Attention of rows, with a bias for each of them."""
    _, _, bias = inputs
    q, k, v = (
        _wide(x).reshape(*x.shape[:2], attributes["num_heads"], -1).swapaxes(1, 2)
        for x in (query, key, value)
    )
    scores = q @ k.swapaxes(2, 3) * np.float32(attributes["scale"]) + _wide(bias)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return _half((weights @ v).swapaxes(1, 2).reshape(query.shape))


@_operator("RestorePadding", MICROSOFT)
def _restore_padding(x: Array, offset: Array) -> Any:
    """Give each text a row as long as the longest one."""
    out = np.zeros((offset.size, x.shape[1]), x.dtype)
    out[offset.reshape(-1)[: len(x)]] = x
    return out.reshape(*offset.shape, -1)


@_operator("RemovePadding", MICROSOFT)
def _remove_padding(x: Array, lengths: Array) -> Any:
    """Undo RestorePadding; its other outputs are not read."""
    kept = np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)])
    none = np.zeros(0, np.int32)
    return kept, none, none, none


@_operator("GatherElements")
def _gather_elements(x: Array, indices: Array, *, axis: int) -> Any:
    """The standard one."""
    return np.take_along_axis(x, indices.astype(np.int64), axis)


@_operator("EmbedLayerNormalization", MICROSOFT)
def _embed_layer_normalization(ids: Array, segments: Array, *inputs: Array | None, **attributes: Any) -> Any:
    """Sum of three embeddings and its norm."""
    words, places, kinds, scale, shift, _, where = inputs
    total = _wide(words)[ids] + _wide(places)[where] + _wide(kinds)[segments]
    return _norm(total, scale, shift, attributes["epsilon"]), np.zeros(len(ids), np.int32)


@_operator("SkipLayerNormalization", MICROSOFT)
def _skip_layer_normalization(
    x: Array,
    skip: Array,
    scale: Array,
    shift: Array | None = None,
    bias: Array | None = None,
    **attributes: Any,
) -> Any:
    """Norm of input + bias + skip, and where asked for their sum."""
    total = _wide(x) + _wide(skip) + (0 if bias is None else _wide(bias))
    normed = _norm(total, scale, 0 if shift is None else shift, attributes["epsilon"])
    unused = np.zeros(0, np.float32)
    return normed, unused, unused, _half(total)


@_operator("BiasGelu", MICROSOFT)
def _bias_gelu(x: Array, bias: Array) -> Any:
    """Gelu of x + bias."""
    total = _wide(x) + _wide(bias)
    return _half(0.5 * total * (1 + erf(total / np.float32(math.sqrt(2)))))


@_operator("FastGelu", MICROSOFT)
def _fast_gelu(x: Array, bias: Array) -> Any:
    """Its approximation by tanh."""
    total = _wide(x) + _wide(bias)
    inner = math.sqrt(2 / math.pi) * (total + 0.044715 * total**3)
    return _half(0.5 * total * (1 + np.tanh(inner)))


@_operator("QuickGelu", MICROSOFT)
def _quick_gelu(x: Array, *, alpha: float) -> Any:
    """x * sigmoid(alpha * x)."""
    wide = _wide(x)
    return _half(wide / (1 + np.exp(-np.float32(alpha) * wide))).astype(x.dtype)


@_operator("MatMul")
def _mat_mul(a: Array, b: Array) -> Any:
    """The standard one, in float32: numpy has no float16 product worth the name."""
    return (_wide(a) @ _wide(b)).astype(a.dtype)


@_operator("Gemm")
def _gemm(a: Array, b: Array, c: Array | None = None, *, transB: int = 0, **_: Any) -> Any:
    """The standard one, likewise; of its attributes only transB is written."""
    b = b.T if transB else b
    return (_wide(a) @ _wide(b) + (0 if c is None else _wide(c))).astype(a.dtype)


@_operator("LSTM")
def _lstm(x: Array, weight: Array, recurrent: Array, bias: Array, **attributes: Any) -> tuple[Array, ...]:
    """The standard one, in both directions; onnx has only one. x (W, 1, D) → (W, 2, 1, D / 2)."""
    assert attributes["direction"] == "bidirectional" and x.shape[1] == 1
    size = attributes["hidden_size"]
    found = np.zeros((len(x), 2, 1, size), np.float32)
    for side, words in enumerate((range(len(x)), range(len(x) - 1, -1, -1))):
        state, cell = np.zeros(size, np.float32), np.zeros(size, np.float32)
        constant = bias[side, : 4 * size] + bias[side, 4 * size :]
        for word in words:
            gates = weight[side] @ x[word, 0] + recurrent[side] @ state + constant
            inputs, outputs, forgets = np.split(sigmoid(gates[: 3 * size]), 3)
            cell = forgets * cell + inputs * np.tanh(gates[3 * size :])
            state = found[word, side, 0] = outputs * np.tanh(cell)
    return found, state[None, None], cell[None, None]  # the last two are not read


def run_flat(model: onnx.ModelProto, texts: Sequence[EncodedText]) -> list[Floats]:
    """Return each text's rows of the output, all texts in one batch."""
    evaluator = ReferenceEvaluator(model, new_ops=_OPERATORS)
    heads = [text.positions for text in texts]
    inputs = flat_inputs([text.encoding for text in texts], heads)
    feeds = {name: inputs[name] for name in evaluator.input_names}
    with np.errstate(over="ignore"):  # an infinity is found in the comparison
        outputs: Any = evaluator.run(None, feeds)
    return split(np.asarray(outputs[0]), [len(t.positions) if t.rows is None else t.rows for t in texts])


def _attend(
    parts: Sequence[Array], offset: Array, ends: Array, attention_bias: Array | None = None, *, heads: int
) -> Array:
    """Return the sums of packed queries, keys and values (T, H)."""
    assert offset.reshape(-1)[: len(parts[0])].tolist() == _padded_places(ends, offset.shape[1])
    out = np.empty(parts[2].shape, np.float32)
    for start, stop in itertools.pairwise(ends.tolist()):
        q, k, v = (part[start:stop].reshape(stop - start, heads, -1).swapaxes(0, 1) for part in parts)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        if attention_bias is not None:
            assert attention_bias.shape[2:] == (offset.shape[1], offset.shape[1])
            scores += _wide(attention_bias)[0, :, : stop - start, : stop - start]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[start:stop] = (weights @ v).swapaxes(0, 1).reshape(stop - start, -1)
    return _half(out)


def _padded_places(ends: Array, longest: int) -> list[int]:
    return [text * longest + i for text, n in enumerate(np.diff(ends)) for i in range(n)]


def _norm(x: Floats, scale: Any, shift: Any, epsilon: float, dtype: Any = np.float16) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    unit = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    normed: Array = (unit * _wide(scale) + _wide(shift)).astype(dtype)
    return normed


def _wide(x: Any) -> Floats:
    return np.asarray(x, np.float32)


def _half(x: Array) -> NDArray[np.float16]:
    return x.astype(np.float16)
