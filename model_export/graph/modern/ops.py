"""Operators shared by ModernBERT's graphs for all devices. P places, D size of a head."""

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np

from bert.bodies.modern import ModernBody
from model_export.graph.ops import GraphOps
from model_export.graph.sparse import Floats


class ModernOps(GraphOps):
    """Reads no segments: the layers have norms before each half, and rotate queries and keys."""

    token_inputs: ClassVar[tuple[str, ...]] = ("input_ids", "position_ids")

    @cached_property
    def sliding(self) -> tuple[bool, ...]:
        """True for each layer with a window."""
        return ModernBody.of(self.config.body).sliding

    def theta_and_divisor(self, layer: int) -> tuple[float, float]:
        """Return the base of a layer's rotations, and what they are divided by."""
        return ModernBody.of(self.config.body).theta(layer), 1.0

    def rotation(self, layer: int) -> tuple[str, Floats, Floats]:
        """Return a name for the rotations of a layer, and their cosines and sines, (P, D / 2) each."""
        config, half = self.config, self.config.head_size // 2
        theta, divisor = self.theta_and_divisor(layer)
        # Rounded where torch rounds: in float32 the angles of place 8,000 have steps of 0.0005, with which models learned.
        wavelengths = theta ** (np.arange(half) * 2 / config.head_size)
        frequencies = np.float32(1) / wavelengths.astype(np.float32) / np.float32(divisor)
        angles = np.arange(config.max_position_embeddings, dtype=np.float32)[:, None] * frequencies
        return f"rotation.{theta:g}", np.cos(angles), np.sin(angles)

    @abstractmethod
    def words(self) -> str:
        """Write the word embeddings; (T, H). Also what every attention shares."""

    @abstractmethod
    def attend(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention of queries and keys that are not yet rotated; (T, H) each to the same."""

    @abstractmethod
    def queries_at_heads(self, x: str) -> str:
        """Write the vectors that `attend_at_heads` takes the queries of."""

    @abstractmethod
    def attend_at_heads(self, query: str, key: str, value: str, layer: int) -> str:
        """Write attention at the head positions; (P, H)."""
