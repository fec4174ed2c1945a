"""The common way to run a batch: PyTorch's scaled_dot_product_attention on batches padded to their longest text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.nn.heads import BertForQuestionAnswering

Scores = NDArray[np.float32]


class PaddedTorch:
    """A model on a device; called with texts of T tokens in all, it gives the two scores of each token, (T, 2)."""

    def __init__(self, model: BertForQuestionAnswering, device: str, *, half: bool, compiled: bool) -> None:
        """Put the model there, in float16 with `half`; with `compiled` through torch.compile for any shape.

        It compiles layer by layer: all layers share one compilation, where a whole BERT-large would take minutes.
        """
        self._model = model.to(device, torch.float16 if half else torch.float32).eval()
        self._device = device
        for layer in self._model.bert.encoder.layer if compiled else ():
            layer.compile(dynamic=True)

    def __call__(self, texts: Sequence[Encoding]) -> Scores:
        """Pad, run, and bring the logits back."""
        ids, mask = padded(texts)
        with torch.inference_mode():
            on_device = torch.from_numpy(ids).to(self._device)
            seen = torch.from_numpy(mask).to(self._device) if not mask.all() else None
            logits = self._model(on_device, torch.zeros_like(on_device), seen)
        found: Scores = logits.float().cpu().numpy()[mask.astype(bool)]
        return found


def padded(texts: Sequence[Encoding]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask (N, T), T the longest text's."""
    shape = len(texts), max(len(text) for text in texts)
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text.ids, 1
    return ids, mask


def matmul_flops(device: str, seconds_of: Callable[[Callable[[], Any]], float]) -> float:
    """Return the operations a second of a large square product: float16 on a GPU, float32 on a CPU."""
    half = device == "cuda"
    size = 8192 if half else 2048
    a, b = (
        torch.randn(size, size, device=device, dtype=torch.float16 if half else torch.float32)
        for _ in range(2)
    )

    def product() -> None:
        torch.mm(a, b)
        synchronise(device)

    return 2 * size**3 / seconds_of(product)


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
