"""Decide whether a classifier of the hub reads one text or two: its files say so only sometimes."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert.errors import ConfigError

UNKNOWN_PAIR = "nothing says whether the classifier reads one text or two: one is taken; --pair takes two"
_OF_TWO_TEXTS = ("entailment", "not_entailment", "contradiction")


def reads_pairs(values: Mapping[str, Any], labels: Sequence[str], stated: bool | None = None) -> bool | None:
    """Return what a `config.json` says, or the user (`stated`); None where nobody says anything.

    Raises ConfigError for labels that are those of two texts, where nothing else says so, and for a cross-encoder of
    sentence-transformers whose score would be another.
    """
    ours = values.get("sentence_transformers")
    old = values.get("sbert_ce_default_activation_function")
    is_cross_encoder = ours is not None or old is not None
    if is_cross_encoder:
        _check_activation(ours.get("activation_fn") if isinstance(ours, dict) else old, labels)
    if stated is not None or is_cross_encoder:
        return True if stated is None else stated
    if found := [label for label in labels if label.lower() in _OF_TWO_TEXTS]:
        raise ConfigError(
            f"config.json: the label {found[0]!r} is one of two texts, and nothing says whether the model reads them: "
            "say --pair, or --no-pair for one text"
        )
    return None


def _check_activation(activation: Any, labels: Sequence[str]) -> None:
    name = str(activation or ("Sigmoid" if len(labels) == 1 else "Identity")).rpartition(".")[2]
    if name != "Identity" and len(labels) == 1:
        raise ConfigError(
            f"config.json: the cross-encoder's score goes through {name}, and the service gives the number before it: "
            "set activation_fn to torch.nn.modules.linear.Identity if that, in the same order, will do"
        )
