"""GLiNER's head in the graph: vectors of labels and words to a score for each span, or word, and label.

P positions of all texts; W words and C labels of one text; D width, K widths of spans. No span has a
vector: the first layer is split into what a span's first and last word give, and the last into what its label gives. So a
score is ReLU(a + e) . q, with a and e once a word and q once a label: the checkpoint's sum in another order.

Layers of words may be in 8 bits; those of labels, which are few, are float32 everywhere. Nothing is worked out of
shapes: CUDA leaves that to the CPU, which the session does not allow.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from bert.checkpoint.tensor_names import LABELS, LSTM, PROJECTION, SCORER, SPANS
from bert.tasks.spec import LabelPrompt
from model_export.graph.graph_builder import Dim, GraphWriter, linear
from model_export.graph.ops import GraphOps

NO_SPAN = -10.0
"""Score of a span that passes the last word: no request can ask for one so low (`FLOOR`)."""


def write_prompted_head(ops: GraphOps, x: str, prompt: LabelPrompt) -> str:
    """Write the scores of float32 vectors (P, H): for each text a row for each word and label, (W * C, K) or (W * C, 3).

    What a word or a label gives by itself is worked out for all texts at once, so that the layers are read from memory once,
    and not once a text. The LSTM and the scores go from text to text, whose numbers of words and labels differ: the LSTM
    takes 1.7 times as long as on texts side by side, which is 2% of a run. Where labels have an encoder of their own, their
    vectors are inputs (`label_inputs` of `bert.graph_inputs`).
    """
    w, head = ops.w, _Head(ops, prompt)
    text = w.node("Cast", w.node("Gather", ops.text_ids(), "positions"), to=TensorProto.INT64)
    count = w.node("Add", w.node("ReduceMax", text, keepdims=0), w.constant("index_1", 1))
    words, text_of_words, of_text = head.projected(x), text, ""
    if prompt.has_encoder:
        sets, of_text = w.input("label_sets", ["labels"]), w.input("text_sets", ["texts"])
        labels = w.input("label_vectors", ["labels", prompt.width], TensorProto.FLOAT)
    else:
        is_word, is_label = _kinds(w, prompt)
        (words, text_of_words), (labels, sets) = (
            [w.node("Compress", each, kind, axis=0) for each in (words, text)] for kind in (is_word, is_label)
        )
    label_side = head.label_side(labels)

    def contextual(number: str) -> str:
        own = w.node("Equal", text_of_words, number)
        return head.contextual(w.node("Compress", words, own, axis=0))

    if prompt.lstm_layers:
        words = _of_each_text(w, count, prompt.width, contextual)
    word_side = head.word_side(words)

    def scores(number: str) -> str:
        own = w.node("Equal", text_of_words, number)
        own_labels = w.node("Equal", sets, w.node("Gather", of_text, number) if of_text else number)
        own_words = [w.node("Compress", each, own, axis=0) for each in word_side]
        side = [w.node("Compress", each, own_labels, axis=0) for each in label_side]
        if not prompt.judges_spans:
            return head.parts(own_words, side)
        ones = w.node("Cast", w.node("Compress", own, own), to=TensorProto.INT64)
        found = head.spans(own_words, side, ones)
        return w.node("Reshape", found, w.constant("score_rows", [-1, prompt.max_width]))

    return _of_each_text(w, count, prompt.max_width if prompt.judges_spans else 3, scores)


def _of_each_text(w: GraphWriter, count: str, width: int, rows: Callable[[str], str]) -> str:
    """Write the rows (R, width) of each text, by its number, one text after the other."""
    number, going, found = (w.unique(name) for name in ("text", "going", "found"))

    def body() -> list[str]:
        return [w.node("Identity", going), w.node("Concat", found, rows(number), axis=0)]

    inputs: list[tuple[str, int, list[Dim]]] = [
        (number, TensorProto.INT64, []),
        (going, TensorProto.BOOL, []),
        (found, TensorProto.FLOAT, ["rows_before", width]),
    ]
    none = w.constant(f"none_of_{width}", np.zeros((0, width), np.float32))
    return w.node("Loop", count, w.constant("always", np.array(True)), none, body=w.subgraph(body, inputs))


def _kinds(w: GraphWriter, prompt: LabelPrompt) -> list[str]:
    """Write which positions (P,) are those of words, and which those of labels' vectors."""
    tokens = w.node("Reshape", "input_ids", w.constant("all", [-1]))
    before = w.constant("before_label", np.array(int(prompt.reads_label), np.int32))
    ids = w.node("Gather", tokens, w.node("Sub", "positions", before))
    is_label = w.node("Equal", ids, w.constant("label_id", np.array(prompt.label_id, np.int32)))
    return [w.node("Not", is_label), is_label]


class _Head:
    """Writes the parts of the head."""

    def __init__(self, ops: GraphOps, prompt: LabelPrompt) -> None:
        self.ops, self.prompt, self.w, self.weights = ops, prompt, ops.w, ops.weights

    def projected(self, x: str) -> str:
        """Write the vectors as wide as the head, if the body's are not; (P, H) → (P, D)."""
        return linear(self.w, x, self.weights, PROJECTION) if f"{PROJECTION}.weight" in self.weights else x

    def contextual(self, words: str) -> str:
        """Write the LSTM over the words, of as many layers as there are; (W, D) → (W, D)."""
        w = self.w
        for layer in range(self.prompt.lstm_layers):
            alone = w.node("Unsqueeze", words, w.constant("axes_1", [1]))
            half = self.prompt.width // 2
            both = w.nodes(
                "LSTM", alone, *self._gates(layer), outputs=3, direction="bidirectional", hidden_size=half
            )
            words = w.node("Reshape", both[0], w.constant("lstm_shape", [0, self.prompt.width]))
        return words

    def label_side(self, labels: str) -> list[str]:
        """Write what labels (C, D) give by themselves, a row each: factors of words, and what is added to the products."""
        w, out, is_plain = self.w, f"{SPANS}.out_project", self.prompt.span_mode == "marker"
        if not self.prompt.judges_spans:
            projected = self._linear(labels, f"{SCORER}.proj_label", is_label=True)
            halves = w.nodes("Split", projected, outputs=2, axis=1, num_outputs=2)
            third = w.constant(f"{SCORER}.out_mlp.0.third_1", self._thirds()[1])
            return [halves[1], w.node("MatMul", halves[0], third)]
        queries = labels if self.prompt.has_encoder else self._two_layers(labels, LABELS, is_label=True)
        name = out if is_plain else f"{out}.3"
        return [
            w.node("MatMul", queries, w.constant(f"{name}.to_label.{kind}", weight))
            for kind, weight in (
                ("weight", self.weights[f"{name}.weight"]),
                ("bias", self.weights[f"{name}.bias"][:, None]),
            )
        ]

    def word_side(self, words: str) -> list[str]:
        """Write what words (W, D) give by themselves, a row each: of their spans' two ends, or what is added and factors."""
        w, out = self.w, f"{SPANS}.out_project"
        if not self.prompt.judges_spans:
            projected = self._linear(words, f"{SCORER}.proj_token", is_label=False)
            halves = w.nodes("Split", projected, outputs=2, axis=1, num_outputs=2)
            third = w.constant(f"{SCORER}.out_mlp.0.third_0", self._thirds()[0])
            return [w.node("MatMul", halves[0], third), halves[1]]
        sides = [
            w.node("Relu", self._two_layers(words, f"{SPANS}.project_{side}")) for side in ("start", "end")
        ]
        if self.prompt.span_mode == "marker":  # one layer: its halves meet in the scores themselves
            return sides
        weights = np.split(self.weights[f"{out}.0.weight"].T, 2)
        biases = (self.weights[f"{out}.0.bias"], None)
        return [
            self.ops.head_linear(side, f"{out}.0.half_{n}", weights[n], biases[n], is_positive=True)
            for n, side in enumerate(sides)
        ]

    def spans(self, word_side: Sequence[str], label_side: Sequence[str], ones: str) -> str:
        """Write the scores (W, C, K) of spans; `ones` is 1 for each word, (W,)."""
        w = self.w
        factors, shift = label_side[0], w.node("Transpose", label_side[1], perm=[1, 0])
        if self.prompt.span_mode != "marker":
            return self._over_widths(word_side[0], word_side[1], factors, shift, ones)
        halves = w.nodes("Split", factors, outputs=2, axis=1, num_outputs=2)
        first, last = (w.node("Gemm", *pair, transB=1) for pair in zip(word_side, halves, strict=True))
        return self._over_widths(first, last, "", shift, ones)

    def _over_widths(self, first: str, last: str, factors: str, shift: str, ones: str) -> str:
        """Write the scores (W, C, K) of what first and last words give, a width of spans after the other."""
        w, widths, zero = self.w, self.prompt.max_width, self.w.constant("axes_0", [0])

        def product(x: str) -> str:
            if not factors:
                return w.node("Add", x, shift)
            return w.node("Gemm", w.node("Relu", x), factors, shift, transB=1)

        ends = w.node("Pad", last, w.constant("pad_ends", [0, 0, widths - 1, 0]))
        scores = []
        for width in range(widths):
            stop = width - widths + 1 or np.iinfo(np.int64).max  # of the padded ones, from their end
            bounds = w.constant(f"width_{width}", [width]), w.constant(f"stop_{width}", [stop])
            both = w.node("Add", first, w.node("Slice", ends, *bounds, zero))
            scores.append(w.node("Unsqueeze", product(both), w.constant("axes_2", [2])))
        number = w.node("CumSum", ones, w.constant("index_0", 0))  # from 1 on
        end = w.node("Unsqueeze", number, w.constant("axes_1_2", [1, 2]))
        end = w.node("Add", end, w.constant("widths", np.arange(widths, dtype=np.int64)))
        is_span = w.node("LessOrEqual", end, w.node("ReduceMax", number))
        return w.node("Where", is_span, w.node("Concat", *scores, axis=2), w.constant("no_span", NO_SPAN))

    def parts(self, word_side: Sequence[str], label_side: Sequence[str]) -> str:
        """Write the scores (W * C, 3) of words; only the product of the two is worked out for each pair."""
        w, hidden, thirds = self.w, f"{SCORER}.out_mlp.0", self._thirds()
        word, factors = (w.node("Unsqueeze", part, w.constant("axes_1", [1])) for part in word_side)
        others, label = (w.node("Unsqueeze", part, w.constant("axes_0", [0])) for part in label_side)
        pairs = w.node(
            "Reshape", w.node("Mul", factors, others), w.constant("pairs", [-1, self.prompt.width])
        )
        both = self.ops.head_linear(pairs, f"{hidden}.third_2", thirds[2], self.weights[f"{hidden}.bias"])
        beside = w.constant("beside_pairs", [-1, thirds[2].shape[1]])
        beside = w.node("Reshape", w.node("Add", word, label), beside)
        both = w.node("Relu", w.node("Add", both, beside))
        last = f"{SCORER}.out_mlp.3"
        scores = w.node("MatMul", both, w.constant(f"{last}.weight.T", self.weights[f"{last}.weight"].T))
        return w.node("Add", scores, w.constant(f"{last}.bias", self.weights[f"{last}.bias"]))

    def _thirds(self) -> list[NDArray[np.float32]]:
        """Return the parts of the scorer's first layer that read words, labels and their products."""
        return np.split(self.weights[f"{SCORER}.out_mlp.0.weight"].T, 3)

    def _gates(self, layer: int) -> list[str]:
        """Write weights of inputs and of states and the biases, in ONNX's order of gates: input, output, forget, cell."""
        found = []
        for kinds in (["weight_ih"], ["weight_hh"], ["bias_ih", "bias_hh"]):
            sides = []
            for side in (f"_l{layer}", f"_l{layer}_reverse"):
                parts = [np.split(self.weights[f"{LSTM}.{kind}{side}"], 4) for kind in kinds]
                sides.append(np.concatenate([part[gate] for part in parts for gate in (0, 3, 1, 2)]))
            found.append(self.w.constant(f"{LSTM}.{kinds[0]}.{layer}", np.stack(sides)))
        return found

    def _two_layers(self, x: str, name: str, *, is_label: bool = False) -> str:
        hidden = self.w.node("Relu", self._linear(x, f"{name}.0", is_label=is_label))
        return self._linear(hidden, f"{name}.3", is_label=is_label, is_positive=True)

    def _linear(self, x: str, name: str, *, is_label: bool, is_positive: bool = False) -> str:
        if is_label:
            return linear(self.w, x, self.weights, name)
        weight, bias = self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"]
        return self.ops.head_linear(x, name, weight, bias, is_positive=is_positive)
