"""The layers of nomic-bert and gte in plain numpy: BERT's, rotated and gated. T tokens, A heads, D size of a head."""

from bert.bodies.rotary import RotaryBody
from model_export.numpy_bodies.bert import NumpyBert
from model_export.numpy_bodies.body import Floats
from model_export.numpy_bodies.modern import rotated


class NumpyRotary(NumpyBert):
    """BERT's layers with rotations, and feed-forward layers that are gated."""

    def _scores(self, query: Floats, key: Floats, name: str) -> Floats:
        body = RotaryBody.of(self.config.body)
        query, key = (rotated(x, body.theta, body.divisor) for x in (query, key))
        return super()._scores(query, key, name)

    def _widened(self, x: Floats, name: str) -> Floats:
        return super()._widened(x, name) * self.linear(x, f"{name}.up")
