"""Tables of the rotations by which ModernBERT's queries and keys know their places. P places, D size of a head."""

import numpy as np
from numpy.typing import NDArray

from bert.bodies.modern import ModernBody
from bert.config import BertConfig


def tables(config: BertConfig, layer: int) -> tuple[str, NDArray[np.float32], NDArray[np.float32]]:
    """Return a name for the rotations of a layer, and their cosines and sines, (P, D / 2) each."""
    theta, half = ModernBody.of(config.body).theta(layer), config.head_size // 2
    # Rounded where torch rounds: in float32 the angles of place 8,000 have steps of 0.0005, and models learned with these.
    wavelengths = theta ** (np.arange(half) * 2 / config.head_size)
    frequencies = np.float32(1) / wavelengths.astype(np.float32)
    angles = np.arange(config.max_position_embeddings, dtype=np.float32)[:, None] * frequencies
    return f"rotation.{theta:g}", np.cos(angles), np.sin(angles)
