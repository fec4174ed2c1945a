"""Checks of a config's values. They raise ConfigError with the name and the rule."""

import sys
from collections.abc import Sequence
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


def require_whole(name: str, value: object) -> None:
    """Raise ConfigError unless a value is a whole number."""
    if not is_whole(value):
        raise ConfigError(f"{name} ({value!r}) must be a whole number")


def require_positive(name: str, value: object) -> None:
    """Raise ConfigError unless a value is a whole number of at least 1."""
    if not is_whole(value) or value < 1:
        raise ConfigError(f"{name} ({value!r}) must be a whole number of at least 1")


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
