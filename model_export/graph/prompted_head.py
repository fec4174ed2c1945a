"""GLiNER's head in the graph: vectors of labels and words to a score for each span, or word, and label.

P positions of all texts; W words and C labels of one text; D width, K widths of spans. No span has a
vector: the first layer is split into what a span's first and last word give, and the last into what its label gives. So a
score is ReLU(a + e) . q, with a and e once a word and q once a label: the checkpoint's sum in another order.
"""

import numpy as np
from onnx import TensorProto

from bert.checkpoint.tensor_names import LABELS, LSTM, PROJECTION, SCORER, SPANS, Weights
from bert.tasks.spec import LabelPrompt
from model_export.graph.graph_builder import Dim, GraphWriter, linear

NO_SPAN = -100.0
"""Score of a span that passes the last word: its probability is 0."""


def write_prompted_head(w: GraphWriter, x: str, text_ids: str, prompt: LabelPrompt, weights: Weights) -> str:
    """Write the scores of vectors (P, H): for each text a row for each word and label, (W * C, K) or (W * C, 3).

    One text after the other: their numbers of words and labels differ. The LSTM takes 1.7 times as long as on texts side by
    side, which is 2% of a run.
    """
    if f"{PROJECTION}.weight" in weights:
        x = linear(w, x, weights, PROJECTION)
    tokens = w.node("Reshape", "input_ids", w.constant("all", [-1]))
    before = w.constant("before_label", np.array(int(prompt.reads_label), np.int32))
    ids = w.node("Gather", tokens, w.node("Sub", "positions", before))
    is_label = w.node("Equal", ids, w.constant("label_id", np.array(prompt.label_id, np.int32)))
    is_word = w.node("Not", is_label)
    text = w.node("Cast", w.node("Gather", text_ids, "positions"), to=TensorProto.INT64)
    count = w.node("Add", w.node("ReduceMax", text, keepdims=0), w.constant("index_1", 1))
    outputs = prompt.max_width if prompt.judges_spans else 3
    number, going, found = (w.unique(name) for name in ("text", "going", "found"))

    def body() -> list[str]:
        is_own, head = w.node("Equal", text, number), _Head(w, prompt, weights)
        words, labels = (
            w.node("Compress", x, w.node("And", is_own, kind), axis=0) for kind in (is_word, is_label)
        )
        words = head.contextual(words)
        scores = head.spans(words, labels) if prompt.judges_spans else head.parts(words, labels)
        rows = w.node("Reshape", scores, w.constant("score_rows", [-1, outputs]))
        return [w.node("Identity", going), w.node("Concat", found, rows, axis=0)]

    inputs: list[tuple[str, int, list[Dim]]] = [
        (number, TensorProto.INT64, []),
        (going, TensorProto.BOOL, []),
        (found, TensorProto.FLOAT, ["rows_before", outputs]),
    ]
    none = w.constant("no_scores", np.zeros((0, outputs), np.float32))
    always = w.constant("always", np.array(True))
    return w.node("Loop", count, always, none, body=w.subgraph(body, inputs))


class _Head:
    """Writes the head of one text."""

    def __init__(self, w: GraphWriter, prompt: LabelPrompt, weights: Weights) -> None:
        self.w, self.prompt, self.weights = w, prompt, weights

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

    def spans(self, words: str, labels: str) -> str:
        """Write the scores (W, C, K) of spans."""
        w, out = self.w, f"{SPANS}.out_project"
        sides = [
            w.node("Relu", self._two_layers(words, f"{SPANS}.project_{side}")) for side in ("start", "end")
        ]
        queries, is_plain = self._two_layers(labels, LABELS), self.prompt.span_mode == "marker"
        name = out if is_plain else f"{out}.3"
        factors, shift = (
            w.node(
                "Transpose",
                w.node("MatMul", queries, w.constant(f"{name}.to_label.{kind}", weight)),
                perm=[1, 0],
            )
            for kind, weight in (
                ("weight", self.weights[f"{name}.weight"]),
                ("bias", self.weights[f"{name}.bias"][:, None]),
            )
        )
        if is_plain:  # one layer: its halves meet in the scores themselves
            halves = w.nodes("Split", factors, outputs=2, axis=0, num_outputs=2)
        else:
            split = np.split(self.weights[f"{out}.0.weight"].T, 2)
            halves = [w.constant(f"{out}.0.half_{n}", half) for n, half in enumerate(split)]
        first, last = (w.node("MatMul", *pair) for pair in zip(sides, halves, strict=True))
        if not is_plain:
            first = w.node("Add", first, w.constant(f"{out}.0.bias", self.weights[f"{out}.0.bias"]))
        return self._over_widths(first, last, "" if is_plain else factors, shift)

    def _over_widths(self, first: str, last: str, factors: str, shift: str) -> str:
        """Write the scores (W, C, K) of what first and last words give, a width of spans after the other."""
        w, widths, zero = self.w, self.prompt.max_width, self.w.constant("axes_0", [0])
        words = w.node("Shape", first, end=1)
        ends = w.node("Pad", last, w.constant("pad_ends", [0, 0, widths - 1, 0]))
        scores = []
        for width in range(widths):
            start = w.constant(f"width_{width}", [width])
            both = w.node("Add", first, w.node("Slice", ends, start, w.node("Add", words, start), zero))
            both = w.node("MatMul", w.node("Relu", both), factors) if factors else both
            scores.append(w.node("Unsqueeze", w.node("Add", both, shift), w.constant("axes_2", [2])))
        count = w.node("Squeeze", words, zero)
        place = w.node("Range", w.constant("index_0", 0), count, w.constant("index_1", 1))
        place = w.node("Unsqueeze", place, w.constant("axes_1_2", [1, 2]))
        end = w.node("Add", place, w.constant("widths", np.arange(widths, dtype=np.int64)))
        is_span = w.node("Less", end, words)
        return w.node("Where", is_span, w.node("Concat", *scores, axis=2), w.constant("no_span", NO_SPAN))

    def parts(self, words: str, labels: str) -> str:
        """Write the scores (W, C, 3) of words; only the product of the two is worked out for each pair."""
        w, hidden = self.w, f"{SCORER}.out_mlp.0"
        of_word, of_label, of_both = (
            w.constant(f"{hidden}.third_{n}", third)
            for n, third in enumerate(np.split(self.weights[f"{hidden}.weight"].T, 3))
        )
        sides = []
        for x, name, weight, axis in ((words, "token", of_word, 1), (labels, "label", of_label, 0)):
            projected = linear(w, x, self.weights, f"{SCORER}.proj_{name}")
            halves = w.nodes("Split", projected, outputs=2, axis=1, num_outputs=2)
            parts = w.node("MatMul", halves[0], weight), halves[1]
            sides.append([w.node("Unsqueeze", part, w.constant(f"axes_{axis}", [axis])) for part in parts])
        (word, factors), (label, others) = sides
        both = w.node("MatMul", w.node("Mul", factors, others), of_both)
        word = w.node("Add", word, w.constant(f"{hidden}.bias", self.weights[f"{hidden}.bias"]))
        both = w.node("Relu", w.node("Add", w.node("Add", both, word), label))
        last = f"{SCORER}.out_mlp.3"
        scores = w.node("MatMul", both, w.constant(f"{last}.weight.T", self.weights[f"{last}.weight"].T))
        return w.node("Add", scores, w.constant(f"{last}.bias", self.weights[f"{last}.bias"]))

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

    def _two_layers(self, x: str, name: str) -> str:
        hidden = self.w.node("Relu", linear(self.w, x, self.weights, f"{name}.0"))
        return linear(self.w, hidden, self.weights, f"{name}.3")
