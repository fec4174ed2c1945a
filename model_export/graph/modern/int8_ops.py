"""ModernBERT's products in 8 bits on the CPU. T tokens, H width.

What `model_export.graph.bert.int8_ops` says of scales counts here too: a LayerNorm's output has one that is fixed at
export, and attention's sums and the gated product, which have both signs, have one for each token. The smoothing factors of
these two are taken by the layers before: by the values' weights, and by the half of the gated layer that is not activated.
"""

from dataclasses import replace

import numpy as np

from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.modern.cpu_ops import ModernCpuOps


class ModernInt8Ops(ModernCpuOps, Int8Ops):
    """Writes the layers' products in 8 bits; heads, norms and attention stay float32."""

    def of_norm(self, x: str, name: str, begin: int = 0, end: int | None = None) -> str:
        """Write x W + b, or outputs `begin` to `end` of it, smoothed for the layer that reads them; (T, H) → (T, out)."""
        linear = self._from_checkpoint(name)
        reader = name.replace("self.query_key_value", "output.dense").replace("intermediate.", "output.")
        factors = self._factors(self._from_checkpoint(reader))
        others = np.ones(len(linear.bias) - len(factors), np.float32)
        linear = replace(linear, output_factors=np.concatenate([others, np.float32(1) / factors]))
        fixed = self._fixed_input(x, [linear])
        return self._fixed_product(
            fixed.quantised, linear, fixed, slice(None) if end is None else slice(begin, end)
        )

    def of_any(self, x: str, name: str) -> str:
        """Write x W + b of a smoothed x, with a scale for each token; (T, in) → (T, H)."""
        linear = self._from_checkpoint(name)
        factors = self._factors(linear)
        linear = replace(linear, weight=linear.weight * factors[:, None], inputs=linear.inputs / factors)
        product = self._product(*self._quantised_signed(x), linear)
        if f"{name}.bias" not in self.weights:
            return product
        return self.w.node("Add", product, self.tensor(f"{name}.bias"))
