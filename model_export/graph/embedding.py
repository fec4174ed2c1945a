"""What makes embeddings of the tokens' last vectors: pooling, dense layers, length 1.

T tokens, H width, N texts, E the embedding's width. No text's embedding depends on its neighbours.
"""

import onnx

from bert.checkpoint.tensor_names import Weights, dense_name
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from model_export.graph.graph_builder import GraphWriter


def pools_chunks(spec: TaskSpec) -> bool:
    """Tell whether the graph for the layout "rows" pools each chunk of a text by itself."""
    return TASKS[spec.task].embeds and spec.pooling == "mean"


def write_embedding(w: GraphWriter, x: str, text_ids: str | None, spec: TaskSpec, weights: Weights) -> str:
    """Write the embeddings (N, E) of x (T, H), both float32; `text_ids` is (T,), of texts or of chunks of them.

    Where only some tokens are wanted, the first of each text say, `text_ids` is None and x holds their vectors (N, H).
    """
    if text_ids is None:
        pooled = x
    else:
        pooling = _Pooling(w, x, text_ids, spec.max_tokens)
        vectors = [getattr(pooling, name)() for name in spec.poolings]
        pooled = w.node("Concat", *vectors, axis=1) if len(vectors) > 1 else vectors[0]
    for number, layer in enumerate(spec.dense):
        name = dense_name(number)
        weight = w.constant(f"{name}.weight.T", weights[f"{name}.weight"].T)
        pooled = w.node("Gemm", pooled, weight, w.constant(f"{name}.bias", weights[f"{name}.bias"]))
        pooled = pooled if layer.activation == "identity" else w.activation(pooled, layer.activation)
    return _unit_length(w, pooled) if spec.normalize else pooled


def pooled_mean(w: GraphWriter, x: str, text_ids: str, order: str | None = None) -> str:
    """Write the means (N, H) of the vectors x (T, H) of each text, both float32; `order` (N,) are the texts' ids."""
    return _Pooling(w, x, text_ids, 0, order).mean()


class _Pooling:
    """Each method writes one vector (N, H) for each text; its name is that of the pooling."""

    def __init__(
        self, w: GraphWriter, x: str, text_ids: str, max_tokens: int, order: str | None = None
    ) -> None:
        self._w, self._x, self._text_ids, self._max_tokens = w, x, text_ids, max_tokens
        self._axis = w.constant("axis_1", [1])
        # Any token of a text names it: here its [CLS].
        order = order or w.node("Gather", text_ids, "positions", axis=0)
        belongs = w.node("Equal", w.node("Unsqueeze", order, self._axis), text_ids)
        self._member = w.node("Cast", belongs, to=onnx.TensorProto.FLOAT)  # (N, T)
        self._lengths = w.node("ReduceSum", self._member, self._axis, keepdims=1)  # (N, 1)

    def cls(self) -> str:
        """Write the vectors of the first tokens."""
        return self._w.node("Gather", self._x, "positions", axis=0)

    def mean(self) -> str:
        """Write the means over the tokens."""
        return self._w.node("Div", self._sum(), self._lengths)

    def mean_sqrt_len_tokens(self) -> str:
        """Write the sums over the tokens, divided by the roots of the lengths."""
        return self._w.node("Div", self._sum(), self._w.node("Sqrt", self._lengths))

    def weightedmean(self) -> str:
        """Write the means in which the n-th token counts n times."""
        w = self._w
        place = w.node("Reshape", "position_ids", w.constant("all", [-1]))
        nth = w.node("Add", w.node("Cast", place, to=onnx.TensorProto.FLOAT), w.constant("one", 1.0))
        weights = w.node("Mul", self._member, nth)
        total = w.node("MatMul", weights, self._x)
        return w.node("Div", total, w.node("ReduceSum", weights, self._axis, keepdims=1))

    def lasttoken(self) -> str:
        """Write the vectors of the last tokens."""
        return self._w.node("Gather", self._x, self._ends(), axis=0)

    def max(self) -> str:
        """Write the largest values over the tokens.

        After n steps each token's row holds the maximum over it and the 2^n - 1 tokens behind it in its text.
        """
        w = self._w
        tokens = w.node("Gather", w.node("Shape", self._x), w.constant("index_0", 0), axis=0)
        texts = w.node("Gather", w.node("Shape", "positions"), w.constant("index_0", 0), axis=0)
        here = w.node("Range", w.constant("index_0", 0), tokens, w.constant("index_1", 1))
        # Padding has some text's end: no text reads its row.
        last_text = w.node("Sub", texts, w.constant("index_1", 1))
        text = w.node("Min", w.node("Cast", self._text_ids, to=onnx.TensorProto.INT64), last_text)
        end = w.node("Gather", self._ends(), text, axis=0)
        largest, reach = self._x, 1
        while reach < self._max_tokens:
            ahead = w.node("Min", w.node("Add", here, w.constant(f"index_{reach}", reach)), end)
            largest = w.node("Max", largest, w.node("Gather", largest, ahead, axis=0))
            reach *= 2
        return w.node("Gather", largest, "positions", axis=0)

    def _sum(self) -> str:
        return self._w.node("MatMul", self._member, self._x)

    def _ends(self) -> str:
        """Write the places (N,) of the last tokens."""
        w = self._w
        lengths = w.node("Cast", w.node("Squeeze", self._lengths, self._axis), to=onnx.TensorProto.INT64)
        begins = w.node("Cast", "positions", to=onnx.TensorProto.INT64)
        return w.node("Sub", w.node("Add", begins, lengths), w.constant("index_1", 1))


def _unit_length(w: GraphWriter, x: str) -> str:
    """Write vectors (N, E) scaled to length 1."""
    # ReduceL2 says the same, and asks for cuDNN on a GPU.
    length = w.node("Sqrt", w.node("ReduceSumSquare", x, w.constant("axis_1", [1]), keepdims=1))
    # The floor is sentence-transformers' own (torch.nn.functional.normalize).
    return w.node("Div", x, w.node("Max", length, w.constant("smallest_length", 1e-12)))
