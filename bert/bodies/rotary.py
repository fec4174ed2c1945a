"""BERT's body with rotations for positions and gated feed-forward layers: that of nomic-bert and of gte.

Queries and keys are rotated by their places (Su et al. 2021, arXiv 2104.09864). Of two products of a feed-forward layer's
input one is activated, and they are multiplied (Shazeer 2020, arXiv 2002.05202).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert.bodies.bert import BertBody
from bert.bodies.body import Shape, layer_shapes
from bert.bodies.sizes import Sizes, check_rotations, is_whole, number
from bert.errors import ConfigError, UnsupportedModelError

FORMS = ("rope_parameters", "rope_scaling")
"""Words with the kind of rotation: those of `transformers` 5, and of the files that came before."""


@dataclass(frozen=True, slots=True)
class RotaryBody(BertBody):
    """The body of Nussbaum et al. 2024 (nomic-bert, arXiv 2402.01613) and Zhang et al. 2024 (gte, arXiv 2407.19669)."""

    theta: float = 10_000.0
    """Base of the rotations' wavelengths."""
    divisor: float = 1.0
    """Number that every rotation is divided by, so that more places fit into a wavelength."""
    biases: bool = False
    """Linear layers have biases, but for those that are multiplied."""

    @property
    def has_positions(self) -> bool:
        """Return False: positions are in attention."""
        return False

    @property
    def has_biases(self) -> bool:
        """Tell whether the layers of attention, and those back to the width of the residual, have biases."""
        return self.biases

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the words of a `config.json`."""
        return (*FORMS, "rope_theta")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "RotaryBody":
        """Read the words, in either form; where both are there they must say the same."""
        stated, size = values.get("rope_theta"), _head_size(values)
        if values.get("head_dim") not in (None, size):
            raise UnsupportedModelError(
                f"head_dim is {values['head_dim']!r}; only hidden_size / num_attention_heads ({size}) is read"
            )
        theta = number("rope_theta", values.get("default_theta", 10_000.0) if stated is None else stated)
        found = [_rotations(name, values[name], theta, size) for name in FORMS if values.get(name)]
        found = found or [(theta, 1.0)]
        if stated is not None and not values.get("rope_scaling"):
            found.append((theta, found[0][1]))
        if any(not all(map(math.isclose, found[0], other)) for other in found):
            said = ", ".join(f"{name} ({values[name]!r})" for name in cls.words() if values.get(name))
            raise ConfigError(f"{said} are different rotations: delete what is not meant")
        return cls(*found[0], biases=values.get("biases", False))

    def written(self) -> dict[str, Any]:
        """Return the words as `transformers` 5 reads them."""
        kind, more = ("default", {}) if self.divisor == 1 else ("linear", {"factor": self.divisor})
        return {"rope_parameters": {"rope_type": kind, "rope_theta": self.theta, **more}}

    def check(self, sizes: Sizes) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        check_rotations(sizes, self.theta, self.divisor)

    def _intermediate_shapes(self, name: str, sizes: Sizes) -> Iterator[Shape]:
        shape = sizes.intermediate_size, sizes.hidden_size
        yield from layer_shapes(f"{name}.dense", shape, bias=False)
        yield from layer_shapes(f"{name}.up", shape, bias=False)


def _head_size(values: Mapping[str, Any]) -> int:
    """Return the size of a head; 1 where no size fits, which is refused with the rest of the config."""
    width, heads = values.get("hidden_size", 768), values.get("num_attention_heads", 12)
    return max(width // heads, 1) if is_whole(width) and is_whole(heads) and heads > 0 else 1


def _rotations(name: str, stated: Any, theta: float, head_size: int) -> tuple[float, float]:
    """Return base and divisor of the rotations that a word of `config.json` states. Raises UnsupportedModelError."""
    if not isinstance(stated, Mapping):
        raise ConfigError(f"{name} ({stated!r}) must be an object")
    given = {key: value for key, value in stated.items() if value is not None}
    kind = given.pop("rope_type", given.pop("type", "default"))
    theta = number(f"{name}.rope_theta", given.pop("rope_theta", theta))
    factor = 1.0 if kind == "default" else number(f"{name}.factor", given.pop("factor", None))
    given.pop("type", None)
    if kind not in ("default", "linear", "ntk"):
        raise UnsupportedModelError(f"rope_type is {kind!r}; only default, linear and ntk are read")
    if given:
        raise UnsupportedModelError(
            f"{name} has {next(iter(given))!r}, which is not read of rotations {kind!r}"
        )
    if factor <= 0:
        raise ConfigError(f"{name}.factor ({factor}) must be above 0")
    # Of "ntk": https://kexue.fm/archives/9706, as the code of Alibaba-NLP/new-impl has it.
    return (theta * factor, factor ** (2 / head_size)) if kind == "ntk" else (theta, factor)
