"""GLiClass's head in the graph: the likeness of each label's vector to that of the text that it stands beside.

P positions of all texts, N texts, C labels of all texts, Q positions of labels, H width.
"""

from onnx import TensorProto

from bert.checkpoint.tensor_names import CLASS_PROJECTOR, LOGIT_SCALE, TEXT_PROJECTOR, Weights
from bert.tasks.spec import ClassPrompt
from model_export.graph.embedding import pooled_mean
from model_export.graph.graph_builder import GraphWriter, linear

SMALLEST_LENGTH = 1e-8
"""Number that is added to a vector's length before it is divided by it, as in `gliclass`."""


def write_class_head(w: GraphWriter, x: str, text_ids: str, prompt: ClassPrompt, weights: Weights) -> str:
    """Write the score of each label, (C, 1), of the vectors x (P, H) at `positions`; (T, H) where texts have means.

    The first position of each text is that of its own vector.
    """
    means = prompt.text_pooling == "avg"
    here = w.node("Gather", x, "positions") if means else x
    text = w.node("Gather", text_ids, "positions")
    first, last = w.constant("axes_0", [0]), w.constant("last", [-1])
    none = w.node("Cast", last, to=TensorProto.INT32)
    before = w.node("Concat", none, w.node("Slice", text, first, last), axis=0)
    is_label = w.node("Equal", text, before)
    is_text = w.node("Not", is_label)
    if means:
        texts = pooled_mean(w, x, text_ids, w.node("Compress", text, is_text))
    else:
        texts = w.node("Compress", here, is_text, axis=0)
    labels, of_text = w.node("Compress", here, is_label, axis=0), w.node("Compress", text, is_label)
    if prompt.label_pooling == "average":
        labels, of_text = _label_means(w, labels, of_text, is_label, prompt)
    texts, labels = (
        _projected(w, vectors, name, prompt, weights)
        for vectors, name in ((texts, TEXT_PROJECTOR), (labels, CLASS_PROJECTOR))
    )
    products = w.node("Mul", w.node("Gather", texts, of_text), labels)
    scores = w.node("ReduceSum", products, w.constant("axes_1", [1]), keepdims=1)
    return (
        w.node("Mul", scores, w.constant(LOGIT_SCALE, weights[LOGIT_SCALE])) if prompt.normalize else scores
    )


def _label_means(w: GraphWriter, x: str, of_text: str, is_label: str, prompt: ClassPrompt) -> tuple[str, str]:
    """Write the means (C, H) of labels' vectors x (Q, H), and each one's text, (C,); a label begins with its marker."""
    tokens = w.node("Reshape", "input_ids", w.constant("all", [-1]))
    ids = w.node("Compress", w.node("Gather", tokens, "positions"), is_label)
    label_id = w.node("Cast", w.constant("label_id", [prompt.label_id]), to=TensorProto.INT32)
    is_marker = w.node("Equal", ids, label_id)
    number = w.node(
        "CumSum", w.node("Cast", is_marker, to=TensorProto.INT64), w.constant("index_0", 0)
    )  # (Q,), from 1 on
    numbers = w.node("Unsqueeze", w.node("Compress", number, is_marker), w.constant("axes_1", [1]))
    member = w.node("Cast", w.node("Equal", numbers, number), to=TensorProto.FLOAT)  # (C, Q)
    if not prompt.reads_marker:
        others = w.node("Cast", w.node("Not", is_marker), to=TensorProto.FLOAT)
        member = w.node("Mul", member, others)
    counts = w.node("ReduceSum", member, w.constant("axes_1", [1]), keepdims=1)
    return w.node("Div", w.node("MatMul", member, x), counts), w.node("Compress", of_text, is_marker)


def _projected(w: GraphWriter, x: str, name: str, prompt: ClassPrompt, weights: Weights) -> str:
    """Write the two layers of a projection; (N or C, H) → the same."""
    hidden = w.activation(linear(w, x, weights, f"{name}.linear_1"), "gelu")
    found = linear(w, hidden, weights, f"{name}.linear_2")
    if not prompt.normalize:
        return found
    squares = w.node("ReduceSumSquare", found, w.constant("axes_1", [1]), keepdims=1)
    length = w.node("Add", w.node("Sqrt", squares), w.constant("smallest_length", SMALLEST_LENGTH))
    return w.node("Div", found, length)
