"""Checks of a config's values. They raise ConfigError with the name and the rule."""

import sys
from collections.abc import Sequence
from typing import Any, TypeGuard

from bert.errors import ConfigError

_LARGEST = sys.float_info.max


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_positive(name: str, value: object) -> None:
    """Raise ConfigError unless a value is a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise ConfigError(f"{name} ({value!r}) must be a whole number of at least 1")


def number(name: str, value: object) -> float:
    """Return a value that is a number; raises ConfigError for another."""
    # YAML reads 1e-12, without a point, as text.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ConfigError(f"{name} ({value!r}) must be a number")
    return value


def check_distances(config: Any, activations: Sequence[str]) -> None:
    """Raise ConfigError for a value of DeBERTa's own that breaks a rule; `config` is a BertConfig, which imports this."""
    for name in ("max_relative_positions", "position_buckets", "conv_kernel_size", "conv_groups"):
        if not is_whole(value := getattr(config, name)):
            raise ConfigError(f"{name} ({value!r}) must be a whole number")
    for name in ("position_biased_input", "share_att_key", "legacy"):
        if not isinstance(value := getattr(config, name), bool):
            raise ConfigError(f"{name} ({value!r}) must be true or false")
    for name in ("pooler_act", "conv_act"):
        if getattr(config, name) not in activations:
            raise ConfigError(f"{name} is {getattr(config, name)!r}; known are {', '.join(activations)}")
    if config.position_buckets > 0 and not 1 <= config.position_buckets // 2 < config.furthest - 1:
        raise ConfigError(
            f"position_buckets ({config.position_buckets}) must be from 2 to twice the longest distance "
            f"({config.furthest - 1}), exclusive"
        )
    kernel, groups = config.conv_kernel_size, config.conv_groups
    if kernel > 0 and (kernel % 2 == 0 or groups < 1 or config.hidden_size % groups):
        raise ConfigError(
            f"conv_kernel_size ({kernel}) must be odd, and conv_groups ({groups}) must divide hidden_size "
            f"({config.hidden_size})"
        )
