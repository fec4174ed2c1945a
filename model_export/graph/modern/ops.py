"""Operators shared by ModernBERT's graphs for all devices. P places, D size of a head."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bert.bodies.modern import ModernBody
from model_export.graph.ops import GraphOps


class ModernOps(GraphOps):
    """Reads no segments: the layers have norms before each half, and rotate queries and keys."""

    token_inputs = ("input_ids", "position_ids")

    @cached_property
    def body(self) -> ModernBody:
        """Words of the body in `config.json`."""
        return ModernBody.of(self.config.body)

    def rotation(self, layer: int) -> tuple[str, NDArray[np.float32], NDArray[np.float32]]:
        """Return a name for the rotations of a layer, and their cosines and sines, (P, D / 2) each."""
        config, theta, half = self.config, self.body.theta(layer), self.config.head_size // 2
        # Rounded where torch rounds: in float32 the angles of place 8,000 have steps of 0.0005, with which models learned.
        wavelengths = theta ** (np.arange(half) * 2 / config.head_size)
        frequencies = np.float32(1) / wavelengths.astype(np.float32)
        angles = np.arange(config.max_position_embeddings, dtype=np.float32)[:, None] * frequencies
        return f"rotation.{theta:g}", np.cos(angles), np.sin(angles)
