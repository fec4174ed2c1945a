"""MPNet's layers: BERT's, whose scores have a bias by the distance of query and key. B texts, T tokens, A heads."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from bert.bodies.mpnet import MpnetBody, bucket_table
from bert.config import BertConfig
from bert.nn.attention import Seen, TextRows, score_dtype
from bert.nn.bert import BertLayers, BertModel


class MpnetLayers(BertLayers):
    """The stack of layers, with one table of biases for all of them."""

    def __init__(self, config: BertConfig) -> None:
        """Make the layers and the table."""
        super().__init__(config)
        buckets = MpnetBody.of(config.body).relative_attention_num_buckets
        self.relative_attention_bias = nn.Embedding(buckets, config.num_attention_heads)

    def with_terms(self, hidden: Tensor, seen: Seen, position_ids: Tensor) -> Tensor:
        """Return what is added to the scores, (B or 1, A, T, T)."""
        assert not isinstance(seen, TextRows)
        buckets = _buckets(hidden.shape[1], hidden.device)
        by_distance: Tensor = (
            self.relative_attention_bias(buckets).permute(2, 0, 1)[None].to(score_dtype(hidden))
        )
        return by_distance if seen is None else by_distance + seen


class MpnetModel(BertModel):
    """Embeddings, the stack of layers, and the pooler that some heads read."""

    layers_class = MpnetLayers


@lru_cache(maxsize=16)
def _buckets(tokens: int, device: torch.device) -> Tensor:
    """Return the bucket of each query and key (T, T) on a device, kept there: to send it would wait for the device."""
    return torch.from_numpy(bucket_table(tokens)).to(device)
