"""A checkpoint once more, in plain numpy: what the graph's answers are compared with.

T tokens, H width, P positions, K scores, V vocabulary, E an embedding's width.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bert.bodies.bert import BertBody
from bert.bodies.body import Body
from bert.bodies.deberta import DebertaBody
from bert.bodies.modern import ModernBody
from bert.bodies.mpnet import MpnetBody
from bert.bodies.rotary import RotaryBody
from bert.checkpoint.tensor_names import head_name
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from bert.tasks.vectors.similarity import normalize
from model_export.numpy_bodies.bert import NumpyBert
from model_export.numpy_bodies.body import Floats as Floats
from model_export.numpy_bodies.body import Ints, NumpyBody, Observe
from model_export.numpy_bodies.class_head import class_scores
from model_export.numpy_bodies.deberta import NumpyDeberta
from model_export.numpy_bodies.modern import NumpyModern
from model_export.numpy_bodies.mpnet import NumpyMpnet
from model_export.numpy_bodies.prompted_head import PromptedHead
from model_export.numpy_bodies.rotary import NumpyRotary

BATCH_TOKENS = 2048
"""Tokens that are worked out at once: more are no faster, and take memory."""

BODIES: dict[type[Body], type[NumpyBody]] = {
    BertBody: NumpyBert,
    MpnetBody: NumpyMpnet,
    DebertaBody: NumpyDeberta,
    ModernBody: NumpyModern,
    RotaryBody: NumpyRotary,
}


class Reference:
    """The checkpoint itself, as the comparison's fixed end."""

    def __init__(
        self,
        config: BertConfig,
        spec: TaskSpec,
        weights: Mapping[str, Floats],
        *,
        observe: Observe = lambda name, x: None,
    ) -> None:
        """`observe` sees the input of every linear layer."""
        self._spec, self._weights, self._task = spec, weights, TASKS[spec.task]
        self._body = BODIES[type(config.body)](config, weights, observe)
        self._body.hidden_id = None if spec.token_vectors is None else spec.token_vectors.hidden_id
        self._head_name = head_name(config, self._task)

    def outputs(self, ids: Ints, segment_ids: Ints, positions: Ints) -> Floats:
        """Return the logits at the positions of one text, (P, K) or (P, V); for similarity its embedding, (1, E).

        For sparse vectors: its largest score of each piece, (1, V), or 0.
        """
        return self._head(self.hidden(ids, segment_ids), ids, positions)

    def outputs_of(self, encodings: Sequence[Encoding], positions: Sequence[Ints]) -> list[Floats]:
        """Return the outputs of each text at its positions, worked out for many texts at once."""
        found = list[Floats]()
        for batch in _batches(encodings):
            (hidden,) = deque(self.layers(batch), maxlen=1)
            texts = np.split(hidden, np.cumsum(list(map(len, batch)))[:-1])
            found += [
                self._head(text, encodings[n].ids, positions[n], encodings[n].label_vectors)
                for n, text in enumerate(texts, len(found))
            ]
        return found

    def layers(self, encodings: Sequence[Encoding]) -> Iterator[Floats]:
        """Yield each layer's output for texts one after the other, (T, H)."""
        ids, segments = (
            np.concatenate([getattr(e, part) for e in encodings]) for part in ("ids", "segment_ids")
        )
        return self._body.layers(ids, segments, list(map(len, encodings)))

    def hidden(self, ids: Ints, segment_ids: Ints) -> Floats:
        """Return the encoder's last layer; ids and segment ids (T,) → (T, H)."""
        (last,) = deque(self._body.layers(ids, segment_ids, [len(ids)]), maxlen=1)
        return last

    def _head(self, hidden: Floats, ids: Ints, positions: Ints, labels: Floats | None = None) -> Floats:
        """Return the outputs of a text's last vectors (T, H) and its ids (T,)."""
        body = self._body
        if self._task.embeds:
            pooled = np.concatenate([_POOLINGS[name](hidden) for name in self._spec.poolings])
            return self._embeddings(pooled[None])
        if self._spec.class_prompt is not None:
            return class_scores(body, self._spec.class_prompt, hidden, ids)
        if self._task.takes_largest:
            largest: Floats = body.pieces(hidden).max(axis=0, keepdims=True)
            return np.maximum(largest, np.float32(0))
        x: Floats = hidden[positions]
        if self._task.has_dense:
            return self._embeddings(x)
        if self._spec.label_prompt is not None:
            return PromptedHead(self._weights, self._spec.label_prompt).outputs(x, ids, positions, labels)
        if self._task.head is Head.VOCABULARY:
            return body.pieces(x)
        x = body.pooled(hidden, x) if self._task.head is Head.POOLED else body.scored(x)
        return body.linear(x, self._head_name)

    def _embeddings(self, x: Floats) -> Floats:
        """Return the embeddings (N, E) of pooled vectors, or of tokens', x (N, H)."""
        for number, layer in enumerate(self._spec.dense):
            weight, bias = (self._weights[f"dense.{number}.{kind}"] for kind in ("weight", "bias"))
            x = _ACTIVATIONS[layer.activation](x @ weight.T + bias)
        return normalize(x) if self._spec.normalize else x


def _batches(encodings: Sequence[Encoding]) -> Iterator[list[Encoding]]:
    batch = list[Encoding]()
    for encoding in encodings:
        if batch and sum(map(len, batch)) + len(encoding) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(encoding)
    yield batch


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "identity": lambda x: x,
}
_POOLINGS: dict[str, Callable[[Floats], Floats]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.float32(math.sqrt(len(x))),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1)).astype(np.float32),
    "lasttoken": lambda x: x[-1],
}
