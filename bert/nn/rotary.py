"""The layers of nomic-bert and gte: BERT's, with rotated queries and keys, and gated.

B texts, T tokens, H width, I width of the gated layer.
"""

from torch import Tensor, nn

from bert.bodies.rotary import RotaryBody
from bert.config import BertConfig
from bert.nn.attention import BertSelfAttention, Seen, attend
from bert.nn.bert import BertLayers, BertModel
from bert.nn.encoder import activation
from bert.nn.modern import Rotation, rotated, rotation


class RotarySelfAttention(BertSelfAttention):
    """Multi-head attention with rotated queries and keys."""

    def forward(self, hidden: Tensor, seen: tuple[Seen, Rotation]) -> Tensor:  # type: ignore[override]
        """Attend within hidden (B, T, H)."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        mask, by = seen
        dropout = self.dropout_prob if self.training else 0.0
        return attend(rotated(q, by), rotated(k, by), v, mask, dropout).transpose(1, 2).flatten(2)


class GatedIntermediate(nn.Module):
    """Widening half of the feed-forward network: one product, activated, times the other."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the projections, H to I each."""
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.activation = activation(config.hidden_act)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if config.family.drops_gated else 0.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, T, H) to (B, T, I)."""
        gated: Tensor = self.dropout(self.activation(self.dense(hidden)) * self.up(hidden))
        return gated


class RotaryLayers(BertLayers):
    """The stack of layers."""

    def __init__(self, config: BertConfig) -> None:
        """Make the layers."""
        super().__init__(config, RotarySelfAttention, GatedIntermediate)

    def with_terms(self, hidden: Tensor, seen: Seen, position_ids: Tensor) -> tuple[Seen, Rotation]:
        """Return what is seen, and the rotations of the places."""
        body = RotaryBody.of(self.config.body)
        return seen, rotation(position_ids, body.theta, self.config.head_size, body.divisor)


class RotaryModel(BertModel):
    """Embeddings, the stack of layers, and the pooler that some heads read."""

    layers_class = RotaryLayers
