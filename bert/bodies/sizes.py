"""The numbers that every body has, and checks of a config's values: ConfigError with the name and the rule."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from bert.errors import ConfigError

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "quick_gelu")
_SAME_ACTIVATIONS = {
    **dict.fromkeys(("gelu_python", "gelu_10"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_new"),
    "swish": "silu",
}
"""Other names of the same functions in `transformers`, which differ by their rounding only."""
_LARGEST = sys.float_info.max


def plain_activation(name: Any) -> Any:
    """Return the name in ACTIVATIONS of a function with several; any other value as it is."""
    return _SAME_ACTIVATIONS.get(name, name) if isinstance(name, str) else name


def check_activation(name: str, value: object, known: Sequence[str] = ACTIVATIONS) -> None:
    """Raise ConfigError unless a value names a known activation."""
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; known are {', '.join(known)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_whole(name: str, value: object, least: int | None = None) -> None:
    """Raise ConfigError unless a value is a whole number, of at least `least` where that is given."""
    if not is_whole(value) or (least is not None and value < least):
        rule = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name} ({value!r}) must be a whole number{rule}")


def require_flag(name: str, value: object) -> None:
    """Raise ConfigError unless a value is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} ({value!r}) must be true or false")


def number(name: str, value: object) -> float:
    """Return a value that is a number; raises ConfigError for another."""
    # YAML reads 1e-12, without a point, as text.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ConfigError(f"{name} ({value!r}) must be a number")
    return value


def require_rate(name: str, value: object) -> None:
    """Raise ConfigError unless a value is a share of features that dropout may take."""
    if not 0 <= number(name, value) < 1:
        raise ConfigError(f"{name} ({value}) must be at least 0 and below 1")


def check_rotations(sizes: "Sizes", *numbers: object) -> None:
    """Raise ConfigError for heads that cannot be rotated, or a number of rotations that must be above 0."""
    if sizes.head_size % 2:
        raise ConfigError(f"attention heads of odd size ({sizes.head_size}) cannot be rotated")
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise ConfigError(f"rope_theta ({value!r}) must be a number above 0")


MAX_LAYERS = 1000
"""A broken config may ask for a billion, which would be counted one by one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that fix a graph, whatever its body; names and defaults are Hugging Face's, those of BERT base.

    Sources: Devlin et al. 2018 (arXiv 1810.04805), section 3; google-research/bert modeling.py for epsilon.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int = 0
    embedding_size: int = 0
    """Width of the embeddings; 0 is hidden_size. Code reads `embedding_width`."""
    num_hidden_groups: int = 0
    """Number of groups of layers that share their weights; 0 gives each layer weights of its own."""
    inner_group_num: int = 1
    """Number of layers, each with its own weights, in one application of a group."""

    def check(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            require_whole(name, getattr(self, name), 1)
        for name in ("intermediate_size", "max_position_embeddings", "type_vocab_size", "inner_group_num"):
            require_whole(name, getattr(self, name), 1)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must divide hidden_size ({self.hidden_size})"
            )
        check_activation("hidden_act", self.hidden_act)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            require_rate(name, getattr(self, name))
        for name in ("layer_norm_eps", "initializer_range"):
            if not number(name, getattr(self, name)) > 0:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be above 0")
        if not is_whole(self.pad_token_id) or not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(
                f"pad_token_id ({self.pad_token_id!r}) must be at least 0 and below vocab_size ({self.vocab_size})"
            )
        for name in ("embedding_size", "num_hidden_groups"):
            require_whole(name, getattr(self, name), 0)
        layers = max(self.num_hidden_layers, self.num_hidden_groups) * self.inner_group_num
        if layers > MAX_LAYERS:
            raise ConfigError(
                f"{layers} layers (num_hidden_layers, times those of a group) are over {MAX_LAYERS}"
            )

    @property
    def embedding_width(self) -> int:
        """Width E of the embeddings and of the masked language model's last hidden state."""
        return self.embedding_size or self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_layer_weights(self) -> int:
        """Number of layers with weights of their own."""
        return (self.num_hidden_groups or self.num_hidden_layers) * self.inner_group_num

    @property
    def shares_layers(self) -> bool:
        """Tell whether several layers have the same weights."""
        return len(set(self.layer_order)) < len(self.layer_order)

    @property
    def layer_order(self) -> tuple[int, ...]:
        """Numbers of the weights of the layers that a text passes, first to last."""
        steps, inner = self.num_hidden_layers, self.inner_group_num
        # In floats as in transformers: other rounding would give a layer to another group.
        groups = (int(step / (steps / (self.num_hidden_groups or steps))) for step in range(steps))
        return tuple(group * inner + place for group in groups for place in range(inner))
