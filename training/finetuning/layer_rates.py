"""Learning rates that shrink from the head to the embeddings (Clark et al. 2020, arXiv 2003.10555, section 3.1)."""

import re
from collections.abc import Iterable

_LAYER = re.compile(r"\bencoder\.layer\.(\d+)\.")
_BODY = "bert."
_POOLER = "bert.pooler."
_LAST_NORM = "bert.encoder.LayerNorm."


def rate_factors(
    names: Iterable[str], decay: float, head: float = 1.0, *, has_last_norm: bool = False
) -> dict[str, float]:
    """Return the factor of each parameter's rate: `decay` to the power of its distance from the head.

    The pooler has 1, layer l of L (counted from 0) has decay^(L - l), the embeddings have decay^(L + 1), and the head
    has `head`. A norm after the last layer has 1, where the body has one (`has_last_norm`).
    """
    names = list(names)
    last = (_POOLER, _LAST_NORM) if has_last_norm else (_POOLER,)
    layers = {name: int(found[1]) for name in names if (found := _LAYER.search(name))}
    count = max(layers.values(), default=-1) + 1
    return {
        # Names of an objective's or an adapter's parameters begin with those of the modules around the model.
        name: decay ** _distance(name, layers.get(name), count, last) if _BODY in name else head
        for name in names
    }


def _distance(name: str, layer: int | None, count: int, last: tuple[str, ...]) -> int:
    if layer is not None:
        return count - layer
    return 0 if any(part in name for part in last) else count + 1
