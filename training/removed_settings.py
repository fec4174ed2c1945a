"""Settings that earlier versions had: a clear refusal instead of "no such setting"."""

from collections.abc import Mapping
from typing import Any

REMOVED_IN = "0.1.0"


def drop_removed(given: Any, name: str, without_effect: object, instead: str) -> Any:
    """Return settings without the removed one, so that saves of earlier versions can still be read.

    Raises ValueError for a value other than `without_effect`; `instead` says what this version does.
    """
    if not isinstance(given, Mapping) or name not in given:
        return given
    if given[name] != without_effect:
        raise ValueError(f"{name} ({given[name]!r}) was removed in version {REMOVED_IN}: {instead}")
    return {key: value for key, value in given.items() if key != name}
