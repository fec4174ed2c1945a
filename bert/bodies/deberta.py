"""DeBERTa's body: BERT's layers, with scores that depend on distances and a convolution after the first layer.

He et al. 2020 (arXiv 2006.03654) and 2021 (2111.09543).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bert.bodies.bert import BertBody
from bert.bodies.body import Shape, layer_shapes
from bert.bodies.sizes import ACTIVATIONS, Sizes, check_activation, require_flag, require_whole
from bert.errors import ConfigError, UnsupportedModelError

DISTANCES, DISTANCES_NORM = "bert.encoder.rel_embeddings.weight", "bert.encoder.LayerNorm"
"""Vectors of distances (`bert.bodies.deberta`), and the norm of all of them."""
CONVOLUTION = "bert.encoder.conv"
TERMS = {"c2p": ("key", "pos_key_proj"), "p2c": ("query", "pos_query_proj")}
"""Term of the scores → the layer that projects distances for it, shared with the content or of its own."""


@dataclass(frozen=True, slots=True)
class DebertaBody(BertBody):
    """The body of versions 1 and 2; version 3 and mDeBERTa are 2 with other weights."""

    projects_before_norm: ClassVar[bool] = True

    position_biased_input: bool = True
    """Embeddings have a table of positions."""
    pos_att_type: tuple[str, ...] = ()
    """Terms of the scores that depend on distances: a query's with a distance ("c2p"), a key's with one ("p2c"), or both."""
    max_relative_positions: int = -1
    """Longest distance with a row of its own; below 1 it is max_position_embeddings. Code reads `furthest`."""
    position_buckets: int = -1
    """Number of rows of each direction of the table of distances; below 1 each distance has its own."""
    share_att_key: bool = False
    """Distances go through the layers of queries and keys; otherwise each layer has two more."""
    norm_rel_ebd: str = "none"
    """"layer_norm" where the table of distances is normalised."""
    conv_kernel_size: int = 0
    """Number of neighbours, itself included, whose embeddings are added to a token after the first layer; 0 for none."""
    conv_act: str = "tanh"
    conv_groups: int = 1
    legacy: bool = True
    """The masked language model's head has BERT's names in the files; without, names of its own."""

    @property
    def has_positions(self) -> bool:
        """Tell whether embeddings have a table of positions."""
        return self.position_biased_input

    @property
    def has_score_terms(self) -> bool:
        """Tell whether scores depend on distances."""
        return bool(self.pos_att_type)

    @property
    def normalises_distances(self) -> bool:
        """Tell whether the table of distances is normalised."""
        return self.norm_rel_ebd == "layer_norm"

    def furthest(self, sizes: Sizes) -> int:
        """Return the distance beyond which all share a row of the table of distances."""
        return (
            self.max_relative_positions if self.max_relative_positions > 0 else sizes.max_position_embeddings
        )

    def distance_table(self, sizes: Sizes) -> tuple[int, int, int]:
        """Return the rows of each direction of the table, its buckets and its furthest distance."""
        furthest = self.furthest(sizes)
        return (
            self.position_buckets if self.position_buckets > 0 else furthest,
            self.position_buckets,
            furthest,
        )

    def score_scale(self, sizes: Sizes) -> float:
        """Return the factor of attention's scores, of which each term that depends on distances is one more sum."""
        return float((sizes.head_size * (1 + len(self.pos_att_type))) ** -0.5)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "DebertaBody":
        """Read the words in the content of a `config.json`; raises UnsupportedModelError for another attention."""
        terms = _terms(values.get("pos_att_type"))
        if bool(values.get("relative_attention", False)) != bool(terms):
            raise UnsupportedModelError(
                f"relative_attention is {values.get('relative_attention', False)!r} and pos_att_type "
                f"{values.get('pos_att_type')!r}: they contradict each other"
            )
        if values.get("talking_head"):
            raise UnsupportedModelError("talking_head is true: attention whose heads are mixed is not read")
        heads, width = values.get("num_attention_heads"), values.get("hidden_size")
        if isinstance(heads, int) and isinstance(width, int) and heads > 0:
            _refuse_other(values, "attention_head_size", width // heads)
            _refuse_other(values, "pooler_hidden_size", width)
        norms = str(values.get("norm_rel_ebd", "none")).lower().split("|")
        norm = "layer_norm" if "layer_norm" in map(str.strip, norms) else "none"
        found = {name: values[name] for name in cls.words() if name in values}
        return cls(**{**found, "pos_att_type": terms, "norm_rel_ebd": norm})

    def written(self) -> dict[str, Any]:
        """Return the words as `read` reads them."""
        words = BertBody.written(self)
        return {
            **words,
            "pos_att_type": list(self.pos_att_type),
            "relative_attention": bool(self.pos_att_type),
        }

    def check(self, sizes: Sizes) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        for name in ("max_relative_positions", "position_buckets", "conv_kernel_size", "conv_groups"):
            require_whole(name, getattr(self, name))
        for name in ("position_biased_input", "share_att_key", "legacy"):
            require_flag(name, getattr(self, name))
        check_activation("conv_act", self.conv_act, (*ACTIVATIONS, "tanh"))
        furthest = self.furthest(sizes)
        if self.position_buckets > 0 and not 1 <= self.position_buckets // 2 < furthest - 1:
            raise ConfigError(
                f"position_buckets ({self.position_buckets}) must be from 2 to twice the longest distance "
                f"({furthest - 1}), exclusive"
            )
        kernel, groups = self.conv_kernel_size, self.conv_groups
        if kernel > 0 and (kernel % 2 == 0 or groups < 1 or sizes.hidden_size % groups):
            raise ConfigError(
                f"conv_kernel_size ({kernel}) must be odd, and conv_groups ({groups}) must divide hidden_size "
                f"({sizes.hidden_size})"
            )

    def _additional_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        h = sizes.hidden_size
        if self.normalises_distances:
            yield from layer_shapes(DISTANCES_NORM, (h,))
        if self.pos_att_type:
            yield DISTANCES, (2 * self.distance_table(sizes)[0], h)
            if not self.share_att_key:
                for layer in range(sizes.num_layer_weights):
                    for term, (_, part) in TERMS.items():
                        if term in self.pos_att_type:
                            name = f"bert.encoder.layer.{layer}.attention.self.{part}"
                            yield from layer_shapes(name, (h, h))
        if self.conv_kernel_size > 0:
            shape = (h, h // self.conv_groups, self.conv_kernel_size)
            yield from layer_shapes(f"{CONVOLUTION}.conv", shape)
            yield from layer_shapes(f"{CONVOLUTION}.LayerNorm", (h,))

    def shortened(self, layers: int, *, keeps_width: bool) -> "DebertaBody":
        """Return the body of a smaller model: the newer head has no place for embeddings of another width."""
        return replace(self, legacy=self.legacy or not keeps_width)


def _terms(named: object) -> tuple[str, ...]:
    """Return which terms depend on distances, of a config's text, list or null. Raises UnsupportedModelError."""
    names = named.lower().split("|") if isinstance(named, str) else named or ()
    if not isinstance(names, list | tuple):
        raise ConfigError(f"pos_att_type ({named!r}) must be a list of names")
    found = tuple(str(name).strip() for name in names if str(name).strip())
    if set(found) - set(TERMS) or len(set(found)) < len(found):
        raise UnsupportedModelError(f"pos_att_type is {named!r}; read are {', '.join(TERMS)}, each once")
    return found


def _refuse_other(values: Mapping[str, Any], key: str, needed: int) -> None:
    if (found := values.get(key, needed)) != needed:
        raise UnsupportedModelError(f"{key} is {found!r}; only {needed} is read with this hidden_size")


def distance_rows(distances: NDArray[np.int64], span: int, buckets: int, furthest: int) -> NDArray[np.int64]:
    """Return the row of the table, 0 to 2 * span - 1, of each distance, the query's position less the key's.

    Without `buckets` each distance has a row of its own. With them, those above half their number share a row with more
    and more neighbours, up to `furthest`. What is further apart has the outermost row of its direction.
    """
    found = _log_buckets(distances, buckets, furthest) if buckets > 0 else distances
    return np.clip(found + span, 0, 2 * span - 1)


def row_table(tokens: int, span: int, buckets: int, furthest: int) -> NDArray[np.int64]:
    """Return the row of each query (row) and key (column) of a text, (T, T)."""
    rows = distance_rows(np.arange(1 - tokens, tokens), span, buckets, furthest)
    places = np.arange(tokens)
    return np.take(rows, places[:, None] - places + tokens - 1)


def _log_buckets(distances: NDArray[np.int64], buckets: int, furthest: int) -> NDArray[np.int64]:
    middle = buckets // 2
    # In float32 as in `transformers`: other rounding would give a distance to another bucket.
    # The logarithms themselves are rounded once, from float64.
    reached = np.maximum(np.abs(distances), middle)
    growth = _log32(reached / middle) / _log32(np.array((furthest - 1) / middle))
    far = np.ceil(growth * np.float32(middle - 1)).astype(np.int64) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * far)


def _log32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return logarithms of values rounded to float32, correctly rounded to float32."""
    return np.log(values.astype(np.float32).astype(np.float64)).astype(np.float32)
