"""MPNet in plain numpy: BERT with a bias of the scores by distance. T tokens, A heads, D size of a head."""

from bert.bodies.mpnet import RELATIVE_BIAS, bucket_table
from model_export.numpy_bodies.bert import NumpyBert
from model_export.numpy_bodies.body import Floats


class NumpyMpnet(NumpyBert):
    """MPNet's layers."""

    def _scores(self, query: Floats, key: Floats, name: str) -> Floats:
        biases = self.weights[RELATIVE_BIAS][bucket_table(query.shape[1])]  # (T, T, A)
        return super()._scores(query, key, name) + biases.transpose(2, 0, 1)
