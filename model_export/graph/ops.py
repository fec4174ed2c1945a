"""Operators shared by the graphs of all bodies and devices. T tokens, H width."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bert.bodies.body import EMBEDDING, WIDENING
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from model_export.graph.graph_builder import GraphWriter
from model_export.graph.sparse import Floats, Largest, write_largest

NO_TEXT = -2
"""Text of what no token attends to; -1 is that of padding in a row."""


class GraphOps(ABC):
    """Writes the parts of a graph for one kind of device; the layers of a body call its methods in their order."""

    token_inputs: ClassVar[tuple[str, ...]] = ("input_ids", "segment_ids", "position_ids")
    """Inputs with a number for each token."""
    hidden_id: int | None = None
    """Id of tokens that no token attends to; None where there are none."""

    def __init__(self, writer: GraphWriter, config: BertConfig, weights: Weights) -> None:
        """Write into `writer`; `weights` by Hugging Face's names."""
        self.w, self.config, self.weights = writer, config, weights

    @abstractmethod
    def inputs(self, *, text_ids: bool, one_position: bool) -> None:
        """Declare the inputs. With `one_position` the head is evaluated at one token of each text."""

    @abstractmethod
    def text_ids(self) -> str:
        """Write (T,): the text of each token."""

    def chunk_ids(self) -> str:
        """Write (T,): the chunk of each token that is pooled by itself; here each text is one."""
        return self.text_ids()

    def seen_ids(self) -> str:
        """Write the text of each token that others attend to, in the shape of `text_ids`."""
        if self.hidden_id is None:
            return "text_ids"
        hidden, none = (
            self.w.constant(name, np.array(number, np.int32))
            for name, number in (("hidden_id", self.hidden_id), ("no_text", NO_TEXT))
        )
        return self.w.node("Where", self.w.node("Equal", "input_ids", hidden), none, "text_ids")

    @abstractmethod
    def to_float32(self, x: str) -> str:
        """Write a cast to float32, if x has another type."""

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Write weights in the type that the device computes in."""
        return self.w.constant(name, value)

    def tensor(self, name: str) -> str:
        """Write one of the checkpoint's tensors."""
        return self.constant(name, self.weights[name])

    def linear(self, x: str, name: str, begin: int = 0, end: int | None = None) -> str:
        """Write x W + b, or its outputs `begin` to `end`; (T, in) → (T, out)."""
        return self.w.node("Gemm", x, *self.linear_parameters(name, begin, end))

    def linear_parameters(self, name: str, begin: int = 0, end: int | None = None) -> list[str]:
        """Write a linear layer's weight, (in, out), and its bias where it has one; or those of some outputs."""
        part = "" if end is None else f".{begin}_{end}"
        weight = self.constant(f"{name}.weight.T{part}", self.weights[f"{name}.weight"][begin:end].T)
        bias = self.weights.get(f"{name}.bias")
        return [weight] if bias is None else [weight, self.constant(f"{name}.bias{part}", bias[begin:end])]

    def head_linear(
        self, x: str, name: str, weight: Floats, bias: Floats | None = None, *, is_positive: bool = False
    ) -> str:
        """Write x W + b of a head in float32, or less where that pays; weight (in, out), float32 (P, in) → (P, out).

        `is_positive` says that no x is below 0.
        """
        parameters = [self.w.constant(f"{name}.weight.T", weight)]
        parameters += [] if bias is None else [self.w.constant(f"{name}.bias", bias)]
        return self.w.node("Gemm", x, *parameters)

    def largest_scores(self, x: str, bias: str | None) -> str:
        """Write each text's largest scores of all pieces, or 0 where these are below 0; (T, e) → float32 (N, V)."""
        product, table = self.vocabulary_product(x), self.weights[EMBEDDING]
        return write_largest(self.w, product, self.largest_of_texts(), table, bias)

    def vocabulary_product(self, x: str) -> Callable[[str, Floats], str]:
        """Return what writes x W (T, C) of x (T, e) and some pieces' vectors, given by a name and as (e, C)."""
        return lambda name, weight: self.w.node("MatMul", x, self.constant(name, weight))

    @abstractmethod
    def largest_of_texts(self) -> Largest:
        """Return what writes the maxima over each text's tokens."""

    def joined_projections(self, name: str) -> list[str]:
        """Write weight and bias of queries, keys and values side by side: (H, 3H) and (3H,)."""
        return self.joined_parameters(name, [f"{name}.{part}" for part in ("query", "key", "value")])

    def joined_parameters(self, name: str, layers: Sequence[str]) -> list[str]:
        """Write the weights of linear layers side by side, and their biases where they have such, under a name."""
        weight = np.concatenate([self.weights[f"{layer}.weight"].T for layer in layers], axis=1)
        biases = [self.weights[f"{layer}.bias"] for layer in layers if f"{layer}.bias" in self.weights]
        bias = [self.constant(f"{name}.bias", np.concatenate(biases))] if biases else []
        return [self.constant(f"{name}.weight", weight), *bias]

    def norm(self, x: str, name: str) -> str:
        """Write LayerNorm(x); shapes stay."""
        parameters = self.norm_parameters(name)
        return self.w.node("LayerNormalization", x, *parameters, axis=-1, epsilon=self.config.layer_norm_eps)

    def norm_parameters(self, name: str) -> list[str]:
        """Write a norm's scale, and its shift where it has one."""
        names = (f"{name}.weight", f"{name}.bias")
        return [self.tensor(each) for each in names if each in self.weights]

    @abstractmethod
    def add_norm(self, x: str, residual: str, norm: str) -> str:
        """Write LayerNorm(x + residual)."""

    def widened(self, summed: str) -> str:
        """Write narrow embeddings (T, e) as wide as the layers, where that comes before their norm; (T, e or H)."""
        if not self.config.widens_embeddings:
            return summed
        return self.w.node("MatMul", summed, self.constant(f"{WIDENING}.T", self.weights[WIDENING].T))

    def after_first(self, embedded: str, x: str, *, gathers: bool) -> str:
        """Write what the second layer reads, of the embeddings and the first layer's output, which it is in BERT.

        With `gathers` x holds the vectors at `positions` only, (P, H).
        """
        return x
