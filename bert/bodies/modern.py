"""ModernBERT's body.

Norms come before each half of a layer, positions are rotations of queries and keys, most layers see a window only, and the
feed-forward layer is gated (Warner et al. 2024, arXiv 2412.13663).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, MLM_HEAD, Body, Shape, layer_shapes
from bert.bodies.sizes import (
    MAX_LAYERS,
    Sizes,
    check_activation,
    check_rotations,
    is_whole,
    plain_activation,
    require_flag,
    require_rate,
    require_whole,
)
from bert.errors import ConfigError, UnsupportedModelError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_OLD_THETAS = {_FULL: "global_rope_theta", _SLIDING: "local_rope_theta"}
_THETAS = {_FULL: 160_000.0, _SLIDING: 10_000.0}
_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
_POOLINGS = ("cls", "mean")
_AS_THEY_ARE = (
    "local_attention", *_BIASES, "classifier_pooling", "classifier_activation", "embedding_dropout",
)  # fmt: skip
"""Words of `config.json` that fields have too."""


@dataclass(frozen=True, slots=True)
class ModernBody(Body):
    """The body of ModernBERT; names and defaults are Hugging Face's."""

    reads_segments: ClassVar[bool] = False
    has_one_head: ClassVar[bool] = True

    sliding: tuple[bool, ...] = ()
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

    @property
    def has_vocabulary_bias(self) -> bool:
        """Tell whether each piece's score has a bias."""
        return self.decoder_bias

    @property
    def text_pooling(self) -> str:
        """Pooling that makes the vector of a text that a classifier reads."""
        return self.classifier_pooling

    @property
    def head_act(self) -> str:
        """Activation of the layers that all heads share."""
        return self.classifier_activation

    @property
    def window(self) -> int:
        """Largest distance of two tokens that see each other in a sliding layer."""
        return self.local_attention // 2

    def theta(self, layer: int) -> float:
        """Return the base of a layer's rotations."""
        return self.sliding_theta if self.sliding[layer] else self.full_theta

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the words of a `config.json`; `layer_types` and `rope_parameters` say two of them in another form."""
        return (*_AS_THEY_ARE, "global_attn_every_n_layers", *_OLD_THETAS.values())

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ModernBody":
        """Read the content of a `config.json`, in the form of transformers 4 or 5."""
        thetas = _thetas(values)
        given = {name: values[name] for name in _AS_THEY_ARE if values.get(name) is not None}
        if "classifier_activation" in given:
            given["classifier_activation"] = plain_activation(given["classifier_activation"])
        return cls(_sliding(values), full_theta=thetas[_FULL], sliding_theta=thetas[_SLIDING], **given)

    def written(self) -> dict[str, Any]:
        """Return the keys of a `config.json`, in both forms where the old one can say it."""
        thetas = {_FULL: self.full_theta, _SLIDING: self.sliding_theta}
        old: dict[str, Any] = {_OLD_THETAS[kind]: theta for kind, theta in thetas.items()}
        for step in range(1, len(self.sliding) + 1):
            if self.sliding == _every(step, len(self.sliding)):
                old["global_attn_every_n_layers"] = step
                break
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            "layer_types": [_SLIDING if sliding else _FULL for sliding in self.sliding],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
            },
            **old,
        }

    def check(self, sizes: Sizes) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        layers = sizes.num_hidden_layers
        if len(self.sliding) != layers:
            raise ConfigError(f"layer_types has {len(self.sliding)} entries and the model {layers} layers")
        require_whole("local_attention", self.local_attention, 0)
        check_rotations(sizes, self.full_theta, self.sliding_theta)
        for name in _BIASES:
            require_flag(name, getattr(self, name))
        if self.classifier_pooling not in _POOLINGS:
            raise ConfigError(
                f"classifier_pooling is {self.classifier_pooling!r}; known are {', '.join(_POOLINGS)}"
            )
        require_rate("embedding_dropout", self.embedding_dropout)
        check_activation("classifier_activation", self.classifier_activation)

    def shapes(self, sizes: Sizes, *, projects: bool = False) -> Iterator[Shape]:
        """Yield the tensors of embeddings and layers."""
        h, i = sizes.hidden_size, sizes.intermediate_size
        yield EMBEDDING, (sizes.vocab_size, h)
        yield from layer_shapes(EMBEDDINGS_NORM, (h,), bias=self.norm_bias)
        for layer in range(sizes.num_hidden_layers):
            name = f"bert.encoder.layer.{layer}"
            at = f"{name}.attention"
            if layer:
                yield from layer_shapes(f"{at}.LayerNorm", (h,), bias=self.norm_bias)
            yield from layer_shapes(f"{at}.self.query_key_value", (3 * h, h), bias=self.attention_bias)
            yield from layer_shapes(f"{at}.output.dense", (h, h), bias=self.attention_bias)
            yield from layer_shapes(f"{name}.intermediate.LayerNorm", (h,), bias=self.norm_bias)
            yield from layer_shapes(f"{name}.intermediate.dense", (2 * i, h), bias=self.mlp_bias)
            yield from layer_shapes(f"{name}.output.dense", (h, i), bias=self.mlp_bias)
        yield from layer_shapes("bert.encoder.LayerNorm", (h,), bias=self.norm_bias)

    def scorer_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors that all heads share."""
        h = sizes.hidden_size
        yield from layer_shapes("head.dense", (h, h), bias=self.classifier_bias)
        yield from layer_shapes("head.norm", (h,), bias=self.norm_bias)

    pooler_shapes = scorer_shapes

    def vocabulary_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of the masked language model's head."""
        yield from self.scorer_shapes(sizes)
        if self.decoder_bias:
            yield f"{MLM_HEAD}.bias", (sizes.vocab_size,)

    def shortened(self, layers: int, *, keeps_width: bool) -> "ModernBody":
        """Return the body of a model of the first layers."""
        return replace(self, sliding=self.sliding[:layers])

    def stretched(self, model_type: str, asked: Mapping[str, Any]) -> "ModernBody":
        """Return the body with slower rotations: no weight hangs on positions."""
        return replace(self, full_theta=asked.get(_OLD_THETAS[_FULL], self.full_theta))


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
    require_whole("global_attn_every_n_layers", step, 1)
    # A number of layers that is none is refused with the rest of the config.
    return _every(step, layers) if is_whole(layers) and layers <= MAX_LAYERS else ()


def _every(step: int, layers: int) -> tuple[bool, ...]:
    return tuple(bool(layer % step) for layer in range(layers))
