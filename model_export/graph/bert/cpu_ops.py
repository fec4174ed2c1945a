"""The graph's parts as the CPU runs them fastest: packed rows, float32. T = R * S tokens, H wide, A heads.

Which of two equal forms is written was measured (docs/measurements/2026-11-22-engine.md): on CPU Add + LayerNormalization
is several times faster than SkipLayerNormalization, and Gather + Add + LayerNormalization than EmbedLayerNormalization.
"""

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, POSITIONS, SEGMENTS
from model_export.graph.graph_builder import MICROSOFT
from model_export.graph.ops import GraphOps
from model_export.graph.sparse import Largest, largest_in_rows

MASKED_SCORE = -1e4  # exp() of it is 0 in float32, and it is finite in float16


def product_block(head_size: int) -> int:
    """Return how many tokens ONNX Runtime sums at once in the product of weights and values, whose rest is added later.

    MLAS cuts the values into blocks of 128 x 128, or longer ones of fewer columns, at least 16.
    """
    return max(128 * 128 // (1 << (max(16, head_size) - 1).bit_length()), 4)


class CpuOps(GraphOps):
    """Writes embeddings, attention, linear layers and the rest for the layout "rows"."""

    def inputs(self, *, text_ids: bool, one_position: bool) -> None:
        """Declare the inputs; the text ids always, as attention needs them."""
        for name in (*self.token_inputs, "text_ids"):
            self.w.input(name, ["rows", "row_tokens"])
        self.w.input("positions", ["positions"])
        if one_position:
            self.w.input("row_heads", ["rows", "row_heads"])
            self.w.input("head_order", ["positions"])

    def embeddings(self) -> str:
        """Write the sum of three embeddings and its norm; (T, e). Also what every attention shares."""
        # In the checkpoint's own order (bert.nn.bert): sums of floats depend on it.
        read = [(EMBEDDING, "input_ids"), (SEGMENTS, "segment_ids"), (POSITIONS, "position_ids")]
        tokens = self.w.constant("all", [-1])
        total, *others = (
            self.w.node("Gather", self.tensor(table), self.w.node("Reshape", ids, tokens))
            for table, ids in read[: 3 if self.config.body.has_positions else 2]
        )
        for other in others:
            total = self.w.node("Add", total, other)
        embedded = self.norm(self.widened(total), EMBEDDINGS_NORM)
        self._attention_bias = self._bias("text_ids")
        shape = self.w.node("Shape", "input_ids")
        width = self.w.constant("width", [self.config.hidden_size])
        self._row_shape = self.w.node("Concat", shape, width, axis=0)
        return embedded

    def project_embeddings(self, x: str, name: str) -> str:
        """Write the linear layer after the embeddings; (T, e) → (T, H)."""
        return self.linear(x, name)

    def _bias(self, text_ids: str, row_heads: str = "") -> str:
        """Write (R, 1 or A, Q, S) for queries of these texts (R, Q): MASKED_SCORE at tokens of another text.

        At the others it is `_allowed` of the queries at `row_heads`, by default at every place of a row.
        """
        across = self.w.node("Unsqueeze", self.seen_ids(), self.w.constant("axes_1_2", [1, 2]))
        down = self.w.node("Unsqueeze", text_ids, self.w.constant("axes_1_3", [1, 3]))
        same = self.w.node("Equal", down, across)
        allowed = self._allowed(row_heads)
        return self.w.node("Where", same, allowed, self.w.constant("masked", MASKED_SCORE))

    def _allowed(self, row_heads: str) -> str:
        """Write the bias of tokens of one text: 0."""
        return self.w.constant("allowed", 0.0)

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its three projections; (T, H) → (T, H)."""
        attended = self.w.node(
            "Attention",
            self._in_rows(x),
            *self.joined_projections(name),
            "",
            "",
            self._attention_bias,
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return self.as_tokens(attended)

    def attention_at_heads(self, x: str, name: str) -> str:
        """Write self-attention whose queries are each row's head positions; (T, H) → (P, H)."""
        (weight, bias), *others = self._projections(name)
        product = self.w.node("MatMul", self.w.node("Gather", x, "row_heads"), weight)
        query = self.w.node("Add", product, bias)
        key, value = (self._in_rows(self.w.node("Gemm", x, *other)) for other in others)
        return self._attended_heads(query, key, value, name)

    def _attended_rows(self, query: str, key: str, value: str, name: str) -> str:
        """Write attention within rows (R, S, H); (T, H)."""
        return self._multi_head(query, key, value, self._attention_bias)

    def _multi_head(self, query: str, key: str, value: str, bias: str) -> str:
        """Write attention of queries (R, Q, H) to rows (R, S, H), whose scores have `bias` (R, 1 or A, Q, S); (R * Q, H)."""
        attended = self.w.node(
            "MultiHeadAttention",
            *(query, key, value, "", "", bias),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
            **self._product_scale(),
        )
        return self.as_tokens(attended)

    def _product_scale(self) -> dict[str, float]:
        """Return the attribute with the factor of products, where it is not that of BERT."""
        return {}

    def _projections(self, name: str) -> list[list[str]]:
        """Write weight and bias of queries, of keys and of values: (H, H) and (H,)."""
        if self.config.shares_layers:
            # Another layer has them joined; the session splits them when it is opened.
            weight, bias = self.joined_projections(name)
            weights = self.w.nodes("Split", weight, outputs=3, axis=1, num_outputs=3)
            biases = self.w.nodes("Split", bias, outputs=3, num_outputs=3)
            return [list(pair) for pair in zip(weights, biases, strict=True)]
        return [self.linear_parameters(f"{name}.{part}") for part in ("query", "key", "value")]

    def _attended_heads(self, query: str, key: str, value: str, name: str) -> str:
        """Write attention of queries (R, Q, H) to rows (R, S, H), in the texts' order; (P, H)."""
        texts = self.w.node("Gather", self.text_ids(), "row_heads")
        bias = self._bias_at_heads(query, key, name, self._bias(texts, "row_heads"))
        return self.w.node("Gather", self._multi_head(query, key, value, bias), "head_order", axis=0)

    def _bias_at_heads(self, query: str, key: str, name: str, bias: str) -> str:
        """Write what is added to the scores of queries (R, Q, H) at head positions, of what `_bias` wrote for them."""
        return bias

    def _in_rows(self, x: str) -> str:
        """Write (T, ...) → (R, S, H)."""
        return self.w.node("Reshape", x, self._row_shape)

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half with its activation; (T, H) → (T, I)."""
        return self.activation(self.linear(x, name))

    def activation(self, x: str) -> str:
        """Write the activation that the config names."""
        return self.w.activation(x, self.config.hidden_act)

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + b + residual); (T, in) → (T, H)."""
        return self.add_norm(self.linear(x, dense), residual, norm)

    def text_ids(self) -> str:
        """Write (T,): the text of each token."""
        return self.w.node("Reshape", "text_ids", self.w.constant("all", [-1]))

    def chunk_ids(self) -> str:
        """Declare and write (T,): the chunk of each token."""
        self.w.input("chunk_ids", ["rows", "row_tokens"])
        return self.w.node("Reshape", "chunk_ids", self.w.constant("all", [-1]))

    def largest_of_texts(self) -> Largest:
        """Return what writes the maxima over each text's tokens."""
        return largest_in_rows(self.w, self.text_ids())

    def to_float32(self, x: str) -> str:
        """Write a cast to the outputs' type; here nothing is to do."""
        return x

    def as_tokens(self, x: str) -> str:
        """Write (R, S, H) → (T, H)."""
        return self.w.node("Reshape", x, self.w.constant("tokens_shape", [-1, self.config.hidden_size]))

    def add_norm(self, x: str, residual: str, norm: str) -> str:
        """Write LayerNorm(x + residual)."""
        return self.norm(self.w.node("Add", x, residual), norm)
