"""GLiClass's head in plain numpy. T tokens, C labels of one text, H width."""

import numpy as np

from bert.checkpoint.tensor_names import CLASS_PROJECTOR, LOGIT_SCALE, TEXT_PROJECTOR
from bert.tasks.spec import ClassPrompt
from model_export.numpy_bodies.body import ACTIVATIONS, Floats, Ints, NumpyBody


def class_scores(body: NumpyBody, prompt: ClassPrompt, x: Floats, ids: Ints) -> Floats:
    """Return the scores (C, 1) of the last vectors (T, H) of tokens with these ids (T,)."""
    marks, separator = np.flatnonzero(ids == prompt.label_id), int((ids == prompt.separator_id).argmax())
    text = {"first": x[0], "separator": x[separator], "avg": x.mean(axis=0)}[prompt.text_pooling]
    starts = marks + (0 if prompt.reads_marker else 1)
    ends = [*marks[1:], separator if prompt.text_pooling == "separator" else len(x)]
    means = [x[a:b].mean(axis=0) for a, b in zip(starts, ends, strict=True)]
    labels = np.stack(means) if prompt.label_pooling == "average" else x[starts]
    sides = []
    for vectors, name in ((labels, CLASS_PROJECTOR), (text[None], TEXT_PROJECTOR)):
        hidden = ACTIVATIONS["gelu"](body.linear(vectors, f"{name}.linear_1"))
        found = body.linear(hidden, f"{name}.linear_2")
        lengths = np.linalg.norm(found, axis=-1, keepdims=True) + 1e-8
        sides.append(found / lengths.astype(np.float32) if prompt.normalize else found)
    scores: Floats = sides[0] @ sides[1].T
    return scores * body.weights[LOGIT_SCALE] if prompt.normalize else scores
