"""ModernBERT's body, which is not BERT's: its shape, and how `config.json` and tensor names say it.

Norms come before each half of a layer, positions are rotations of queries and keys, most layers see a window only, and the
feed-forward layer is gated (Warner et al. 2024, arXiv 2412.13663).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bert.errors import ConfigError, UnsupportedModelError
from bert.relatives.checks import is_whole
from bert.relatives.family import Array, Family

_FULL, _SLIDING = "full_attention", "sliding_attention"
_OLD_THETAS = {_FULL: "global_rope_theta", _SLIDING: "local_rope_theta"}
_THETAS = {_FULL: 160_000.0, _SLIDING: 10_000.0}
_MOST_LAYERS = 1000
_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
_POOLINGS = ("cls", "mean")


@dataclass(frozen=True, slots=True)
class ModernShape:
    """The numbers that fix ModernBERT's graph beside those that BERT has too; names and defaults are Hugging Face's."""

    sliding: tuple[bool, ...]
    """True for each layer in which a token sees only those at most `window` places away."""
    local_attention: int = 128
    full_theta: float = _THETAS[_FULL]
    """Base of the rotations' wavelengths in the layers that see the whole text."""
    sliding_theta: float = _THETAS[_SLIDING]
    """Base of the wavelengths in the layers that see a window."""
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_bias: bool = False
    decoder_bias: bool = True
    classifier_pooling: str = "cls"
    """Vector of a text that a classifier reads: that of its first token, or the mean of all."""
    classifier_activation: str = "gelu"
    embedding_dropout: float = 0.0

    def check(self, layers: int, head_size: int) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        if len(self.sliding) != layers:
            raise ConfigError(f"layer_types has {len(self.sliding)} entries and the model {layers} layers")
        if not is_whole(self.local_attention) or self.local_attention < 0:
            raise ConfigError(
                f"local_attention ({self.local_attention!r}) must be a whole number of at least 0"
            )
        if head_size % 2:
            raise ConfigError(f"attention heads of odd size ({head_size}) cannot be rotated")
        for name in _BIASES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} ({getattr(self, name)!r}) must be true or false")
        for theta in (self.full_theta, self.sliding_theta):
            if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < 1e30:
                raise ConfigError(f"rope_theta ({theta!r}) must be a number above 0")
        if self.classifier_pooling not in _POOLINGS:
            raise ConfigError(
                f"classifier_pooling is {self.classifier_pooling!r}; known are {', '.join(_POOLINGS)}"
            )
        rate = self.embedding_dropout
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ConfigError(f"embedding_dropout ({rate!r}) must be at least 0 and below 1")

    @property
    def window(self) -> int:
        """Largest distance of two tokens that see each other in a sliding layer."""
        return self.local_attention // 2

    def theta(self, layer: int) -> float:
        """Return the base of a layer's rotations."""
        return self.sliding_theta if self.sliding[layer] else self.full_theta

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ModernShape":
        """Read the content of a `config.json`, in the form of transformers 4 or 5."""
        thetas = _thetas(values)
        names = ("local_attention", *_BIASES, "classifier_pooling", "classifier_activation")
        given = {name: values[name] for name in (*names, "embedding_dropout") if values.get(name) is not None}
        return cls(_sliding(values), full_theta=thetas[_FULL], sliding_theta=thetas[_SLIDING], **given)

    def written(self) -> dict[str, Any]:
        """Return the keys of a `config.json`, in both forms where the old one can say it."""
        thetas = {_FULL: self.full_theta, _SLIDING: self.sliding_theta}
        names = ("local_attention", *_BIASES, "classifier_pooling", "classifier_activation")
        old: dict[str, Any] = {_OLD_THETAS[kind]: theta for kind, theta in thetas.items()}
        for step in range(1, len(self.sliding) + 1):
            if self.sliding == _every(step, len(self.sliding)):
                old["global_attn_every_n_layers"] = step
                break
        return {
            **{name: getattr(self, name) for name in (*names, "embedding_dropout")},
            "layer_types": [_SLIDING if sliding else _FULL for sliding in self.sliding],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
            },
            **old,
        }


class ModernFamily(Family):
    """Checkpoints of ModernBERT. Linear layers that a file has joined stay so: adapters are made for them as they are."""

    __slots__ = ()

    def bert_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` under BERT's keys, with a ModernShape under `modern`."""
        # BERT's own keys mean nothing here: some files have a layer_norm_eps beside their norm_eps.
        bert_only = {ours for ours, theirs in self.config_keys.items() if ours != theirs}
        found = super().bert_config({key: value for key, value in values.items() if key not in bert_only})
        return {
            **found,
            "modern": ModernShape.read({**values, "num_hidden_layers": found["num_hidden_layers"]}),
        }

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in the family's words, of one in BERT's."""
        shape = values.get("modern")
        kept = {k: v for k, v in values.items() if k not in ("modern", "position_embedding_type")}
        kept = super().own_config(kept)
        return {**kept, **ModernShape(**shape).written()} if shape else kept

    def bert_weights(self, weights: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
        """Return a file's tensors under BERT's names where it has such, else under the project's."""
        self._refuse_two_bodies(weights)
        return {self.bert_name(name): weights[name] for name in weights if ".rotary_emb." not in name}

    def own_weights(
        self, weights: Mapping[str, Array], architecture: str, config: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return tensors as the family has them in its files."""
        return {self.own_name(name, architecture): tensor for name, tensor in weights.items()}


def _thetas(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base of the rotations by the kind of layer. Raises UnsupportedModelError for other rotations."""
    stated = values.get("rope_parameters") or {}
    if values.get("rope_scaling"):
        raise UnsupportedModelError(
            f"rope_scaling is {values['rope_scaling']!r}; only plain rotations are read"
        )
    if not isinstance(stated, Mapping):
        raise ConfigError(f"rope_parameters ({stated!r}) must be an object")
    found = {}
    for kind, default in _THETAS.items():
        of_kind = stated.get(kind) or {}
        if not isinstance(of_kind, Mapping):
            raise ConfigError(f"rope_parameters.{kind} ({of_kind!r}) must be an object")
        # Older files say "type", and transformers reads it where there is no rope_type.
        if (rope_type := of_kind.get("rope_type", of_kind.get("type", "default"))) != "default":
            raise UnsupportedModelError(f"rope_type is {rope_type!r}; only 'default' is read")
        old = values.get(_OLD_THETAS[kind])
        found[kind] = of_kind.get("rope_theta", default if old is None else old)
    return found


def _sliding(values: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which layers slide. Raises ConfigError."""
    names = values.get("layer_types")
    if names is not None:
        if not isinstance(names, list | tuple) or any(name not in (_FULL, _SLIDING) for name in names):
            raise ConfigError(f"layer_types ({names!r}) must be a list of {_FULL!r} and {_SLIDING!r}")
        return tuple(name == _SLIDING for name in names)
    layers, step = values.get("num_hidden_layers"), values.get("global_attn_every_n_layers")
    step = 3 if step is None else step
    if not is_whole(step) or step < 1:
        raise ConfigError(f"global_attn_every_n_layers ({step!r}) must be a whole number of at least 1")
    # A number of layers that is none is refused with the rest of the config.
    return _every(step, layers) if is_whole(layers) and layers <= _MOST_LAYERS else ()


def _every(step: int, layers: int) -> tuple[bool, ...]:
    return tuple(bool(layer % step) for layer in range(layers))
