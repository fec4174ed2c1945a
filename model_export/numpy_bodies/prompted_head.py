"""GLiNER's head in plain numpy, with a vector for each span. W words, C labels, D width, K widths of spans."""

from collections.abc import Mapping

import numpy as np

from bert.checkpoint.tensor_names import LABELS, LSTM, PROJECTION, SCORER, SPANS
from bert.tasks.spec import LabelPrompt
from bert.tasks.task import sigmoid
from model_export.numpy_bodies.body import Floats, Ints

NO_SPAN = -10.0
"""Score of a span that passes the last word."""


class PromptedHead:
    """The head on the vectors of one text: those of its labels, and of each word's first piece."""

    def __init__(self, weights: Mapping[str, Floats], prompt: LabelPrompt) -> None:
        """Weights are under GLiNER's names."""
        self._weights, self._prompt = weights, prompt

    def outputs(self, x: Floats, ids: Ints, positions: Ints, labels: Floats | None = None) -> Floats:
        """Return the scores (W * C, K), or of start, end and inside (W * C, 3), of vectors (C + W, H).

        With the vectors (C, D) of `labels`, which have an encoder of their own, x are those of the words.
        """
        if f"{PROJECTION}.weight" in self._weights:
            x = self._linear(x, PROJECTION)
        words = x
        if labels is None:
            is_label = ids[positions - int(self._prompt.reads_label)] == self._prompt.label_id
            labels, words = x[is_label], x[~is_label]
        for layer in range(self._prompt.lstm_layers):
            backward = self._lstm(words[::-1], f"_l{layer}_reverse")[::-1]
            words = np.concatenate([self._lstm(words, f"_l{layer}"), backward], axis=1)
        found = self._spans(words, labels) if self._prompt.judges_spans else self._parts(words, labels)
        return found.reshape(len(words) * len(labels), -1)

    def _spans(self, words: Floats, labels: Floats) -> Floats:
        """Return (W, C, K)."""
        starts, ends = (self._two_layers(words, f"{SPANS}.project_{side}") for side in ("start", "end"))
        queries = labels if self._prompt.has_encoder else self._two_layers(labels, LABELS)
        found = np.full((len(words), len(labels), self._prompt.max_width), np.float32(NO_SPAN))
        for width in range(min(self._prompt.max_width, len(words))):
            both = np.concatenate([starts[: len(words) - width], ends[width:]], axis=1)
            relu: Floats = np.maximum(both, np.float32(0))
            is_plain = self._prompt.span_mode == "marker"
            out = f"{SPANS}.out_project"
            spans = self._linear(relu, out) if is_plain else self._two_layers(relu, out)
            found[: len(spans), :, width] = spans @ queries.T
        return found

    def _parts(self, words: Floats, labels: Floats) -> Floats:
        """Return (W, C, 3)."""
        t = self._linear(words, f"{SCORER}.proj_token").reshape(len(words), 1, 2, -1)
        p = self._linear(labels, f"{SCORER}.proj_label").reshape(1, len(labels), 2, -1)
        t, p = np.broadcast_arrays(t, p)
        joined = np.concatenate([t[:, :, 0], p[:, :, 0], t[:, :, 1] * p[:, :, 1]], axis=-1)
        return self._two_layers(joined, f"{SCORER}.out_mlp")

    def _lstm(self, x: Floats, suffix: str) -> Floats:
        """Return the states (W, D / 2) of one direction; gates are input, forget, cell, output."""
        w, r, b, c = (
            self._weights[f"{LSTM}.{kind}{suffix}"]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        inputs, state, cell = (
            x @ w.T + b + c,
            np.zeros(r.shape[1], np.float32),
            np.zeros(r.shape[1], np.float32),
        )
        states = []
        for row in inputs:
            i, f, g, o = np.split(row + r @ state, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = sigmoid(o) * np.tanh(cell)
            states.append(state)
        return np.stack(states) if states else inputs[:, : r.shape[1]]

    def _two_layers(self, x: Floats, name: str) -> Floats:
        last = max(int(key.split(".")[-2]) for key in self._weights if key.startswith(f"{name}."))
        hidden: Floats = np.maximum(self._linear(x, f"{name}.0"), np.float32(0))
        return self._linear(hidden, f"{name}.{last}")

    def _linear(self, x: Floats, name: str) -> Floats:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"], np.float32)
