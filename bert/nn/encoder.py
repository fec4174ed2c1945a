"""The torch base of all bodies: embeddings, a stack of layers, and the parts of heads that depend on the body.

B texts, T tokens, H width, E width of the embeddings. Module names are the ones that checkpoints on the hub have, so that
`state_dict` is the file format.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert.config import BertConfig
from bert.nn.attention import Mask


class Products(NamedTuple):
    """Multiplications of attention that are no layer's weights, in all layers together."""

    token: int = 0
    """Those of one token."""
    attended: int = 0
    """Those of one token for each token that it attends to, in layers that see the whole text."""
    in_window: int = 0
    """Those of one token for each token that it attends to, in layers that see a window only."""


class Embeddings(nn.Module):
    """The embeddings of any body."""

    word_embeddings: nn.Embedding
    """Table (V, E), which a decoder shares."""


class LayerStack(nn.Module, ABC):
    """The layers of any body."""

    layer: nn.ModuleList
    order: tuple[int, ...]
    """Number in `layer` of each layer that a text passes."""
    has_last_norm = False
    """The stack's own `LayerNorm` follows the last layer."""
    checkpointing = False  # see recompute_activations

    @abstractmethod
    def forward(self, hidden: Tensor, mask: Mask, position_ids: Tensor) -> Tensor:
        """Map embeddings (B, T, H), of tokens at places (B or 1, T), to the last layer's output (B, T, H)."""

    @abstractmethod
    def products(self) -> Products:
        """Count the products of attention."""

    def run(self, layer: nn.Module, *inputs: Any) -> Tensor:
        """Run one layer, in training without keeping its activations where that was asked for."""
        recomputes = self.checkpointing and self.training
        hidden: Tensor = checkpoint(layer, *inputs, use_reentrant=False) if recomputes else layer(*inputs)
        return hidden


class Encoder(nn.Module, ABC):
    """A body: embeddings and the stack of layers."""

    embeddings: Embeddings
    encoder: LayerStack
    pooler: nn.Module | None
    """Module that makes one vector (B, H) of hidden states (B, T, H); None where no head reads it."""

    def __init__(self, config: BertConfig) -> None:
        """Keep the configuration."""
        super().__init__()
        self.config = config

    @abstractmethod
    def embed(self, input_ids: Tensor, segment_ids: Tensor | None, position_ids: Tensor) -> Tensor:
        """Return what the first layer reads (B, T, H), of ids (B, T) and places (B or 1, T)."""

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Mask = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encode ids (B, T) to hidden states (B, T, H).

        `attention_mask` is 1 at tokens and 0 at padding, (B, T), or says by pairs (B, T, T) which query sees which
        key. Packed texts need this, or better their rows. Leave it out where nothing is padded: attention is faster
        without.
        """
        places = position_ids
        if places is None:
            places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        encoded: Tensor = self.encoder(self.embed(input_ids, segment_ids, places), attention_mask, places)
        return encoded

    def make_head(self) -> nn.Module:
        """Make the layers that all heads share, for a body that has such."""
        raise NotImplementedError(type(self).__name__)

    @property
    def scorer_range(self) -> float:
        """Standard deviation of the fresh weights of a head's last layer."""
        return self.config.initializer_range


def has_last_norm(model: nn.Module) -> bool:
    """Tell whether a norm follows the last layer of a stack in a model."""
    return any(module.has_last_norm for module in model.modules() if isinstance(module, LayerStack))


def recompute_activations(model: nn.Module, on: bool = True) -> None:
    """Keep only what goes into each layer, and compute the rest again in the backward pass: less memory, more time.

    Gradients are the same. It is so for every stack of layers in the model, while that is in training mode.
    """
    for module in model.modules():
        if isinstance(module, LayerStack):
            module.checkpointing = on


def initialize(module: nn.Module, initializer_range: float) -> None:
    """Give a module BERT's fresh weights (modeling.py draws from a normal truncated at two deviations)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(
            module.weight, std=initializer_range, a=-2 * initializer_range, b=2 * initializer_range
        )
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()


def activation(name: str) -> nn.Module:
    """Return GELU (erf), its tanh or sigmoid approximation, SiLU, ReLU, or tanh."""
    known = {
        "gelu": nn.GELU(),
        "gelu_new": nn.GELU(approximate="tanh"),
        "quick_gelu": QuickGelu(),
        "silu": nn.SiLU(),
        "relu": nn.ReLU(),
        "tanh": nn.Tanh(),
    }
    return known[name]


class QuickGelu(nn.Module):
    """GELU approximated by a sigmoid (Hendrycks & Gimpel 2016, arXiv 1606.08415)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same."""
        return x * torch.sigmoid(1.702 * x)
