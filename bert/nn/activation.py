"""Activations by the names that configs have for them."""

import torch
from torch import Tensor, nn


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
