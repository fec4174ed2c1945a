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

    One text after the other: their numbers of words and labels differ, and so no bit of a score depends on another text.
    The LSTM takes 1.7 times as long as on texts side by side, which is 2% of a run. Where labels have an encoder of their
    own, their vectors are inputs (`label_inputs` of `bert.graph_inputs`), and what depends on them alone is worked out once.
    """
    w, head = ops.w, _Head(ops, prompt)
    given = _given_labels(w, head, prompt.width) if prompt.has_encoder else None
    kinds = _kinds(w, prompt) if given is None else []
    text = w.node("Cast", w.node("Gather", ops.text_ids(), "positions"), to=TensorProto.INT64)
    count = w.node("Add", w.node("ReduceMax", text, keepdims=0), w.constant("index_1", 1))
    outputs = prompt.max_width if prompt.judges_spans else 3
    number, going, found = (w.unique(name) for name in ("text", "going", "found"))

    def body() -> list[str]:
        is_own = w.node("Equal", text, number)
        own_words, *own_labels = [w.node("And", is_own, kind) for kind in kinds] or [is_own]
        words, *labels = (
            head.projected(w.node("Compress", x, own, axis=0)) for own in (own_words, *own_labels)
        )
        words, label_side = head.contextual(words), given(number) if given else head.label_side(labels[0])
        if prompt.judges_spans:
            ones = w.node("Cast", w.node("Compress", is_own, own_words, axis=0), to=TensorProto.INT64)
            scores = head.spans(words, label_side, ones)
        else:
            scores = head.parts(words, label_side)
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


def _kinds(w: GraphWriter, prompt: LabelPrompt) -> list[str]:
    """Write which positions (P,) are those of words, and which those of labels' vectors."""
    tokens = w.node("Reshape", "input_ids", w.constant("all", [-1]))
    before = w.constant("before_label", np.array(int(prompt.reads_label), np.int32))
    ids = w.node("Gather", tokens, w.node("Sub", "positions", before))
    is_label = w.node("Equal", ids, w.constant("label_id", np.array(prompt.label_id, np.int32)))
    return [w.node("Not", is_label), is_label]


def _given_labels(w: GraphWriter, head: "_Head", width: int) -> Callable[[str], list[str]]:
    """Declare the inputs of labels' vectors; return what writes the label side of a text's number."""
    sets, of_text = w.input("label_sets", ["labels"]), w.input("text_sets", ["texts"])
    side = head.label_side(w.input("label_vectors", ["labels", width], TensorProto.FLOAT))

    def of(number: str) -> list[str]:
        is_own = w.node("Equal", sets, w.node("Gather", of_text, number))
        return [w.node("Compress", each, is_own, axis=0) for each in side]

    return of


class _Head:
    """Writes the head of one text."""

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

    def spans(self, words: str, label_side: Sequence[str], ones: str) -> str:
        """Write the scores (W, C, K) of spans; `ones` is 1 for each word, (W,)."""
        w, out, is_plain = self.w, f"{SPANS}.out_project", self.prompt.span_mode == "marker"
        sides = [
            w.node("Relu", self._two_layers(words, f"{SPANS}.project_{side}")) for side in ("start", "end")
        ]
        factors, shift = (w.node("Transpose", each, perm=[1, 0]) for each in label_side)
        if is_plain:  # one layer: its halves meet in the scores themselves
            halves = w.nodes("Split", factors, outputs=2, axis=0, num_outputs=2)
            first, last = (w.node("MatMul", *pair) for pair in zip(sides, halves, strict=True))
        else:
            weights = np.split(self.weights[f"{out}.0.weight"].T, 2)
            biases = (self.weights[f"{out}.0.bias"], None)
            first, last = (
                self.ops.head_linear(side, f"{out}.0.half_{n}", weights[n], biases[n], is_positive=True)
                for n, side in enumerate(sides)
            )
        return self._over_widths(first, last, "" if is_plain else factors, shift, ones)

    def _over_widths(self, first: str, last: str, factors: str, shift: str, ones: str) -> str:
        """Write the scores (W, C, K) of what first and last words give, a width of spans after the other."""
        w, widths, zero = self.w, self.prompt.max_width, self.w.constant("axes_0", [0])
        ends = w.node("Pad", last, w.constant("pad_ends", [0, 0, widths - 1, 0]))
        scores = []
        for width in range(widths):
            stop = width - widths + 1 or np.iinfo(np.int64).max  # of the padded ones, from their end
            bounds = w.constant(f"width_{width}", [width]), w.constant(f"stop_{width}", [stop])
            both = w.node("Add", first, w.node("Slice", ends, *bounds, zero))
            both = w.node("MatMul", w.node("Relu", both), factors) if factors else both
            scores.append(w.node("Unsqueeze", w.node("Add", both, shift), w.constant("axes_2", [2])))
        number = w.node("CumSum", ones, w.constant("index_0", 0))  # from 1 on
        end = w.node("Unsqueeze", number, w.constant("axes_1_2", [1, 2]))
        end = w.node("Add", end, w.constant("widths", np.arange(widths, dtype=np.int64)))
        is_span = w.node("LessOrEqual", end, w.node("ReduceMax", number))
        return w.node("Where", is_span, w.node("Concat", *scores, axis=2), w.constant("no_span", NO_SPAN))

    def parts(self, words: str, label_side: Sequence[str]) -> str:
        """Write the scores (W * C, 3) of words; only the product of the two is worked out for each pair."""
        w, hidden, thirds = self.w, f"{SCORER}.out_mlp.0", self._thirds()
        projected = self._linear(words, f"{SCORER}.proj_token", is_label=False)
        halves = w.nodes("Split", projected, outputs=2, axis=1, num_outputs=2)
        own = w.node("MatMul", halves[0], w.constant(f"{hidden}.third_0", thirds[0]))
        word, factors = (w.node("Unsqueeze", part, w.constant("axes_1", [1])) for part in (own, halves[1]))
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
