"""New models by family: the settings of their shape, and the config that a run makes of them.

Each family's defaults are those of its published base model, so `model_type: albert` alone is ALBERT base.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.families import FAMILIES
from bert.settings import SettingsPart

ModelType = Literal["bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert"]
PUBLISHED: dict[str, dict[str, Any]] = {
    "roberta": {"layer_norm_eps": 1e-5},
    "distilbert": {"num_hidden_layers": 6},
    "electra": {"embedding_size": 128},
    "albert": {
        "embedding_size": 128, "num_hidden_groups": 1, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "deberta-v2": {"layer_norm_eps": 1e-7, "position_buckets": 256},
    "modernbert": {
        "num_hidden_layers": 22, "layer_norm_eps": 1e-5, "max_position_embeddings": 1024,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip
"""`model_type` → settings in which its base model differs from BERT base."""
_FIXED: dict[str, dict[str, Any]] = {
    "roberta": {"has_segments": False},
    "distilbert": {"has_segments": False},
    # Version 3's attention: log buckets, shared projections, both terms, no absolute positions.
    "deberta-v2": {
        "has_segments": False, "position_biased_input": False, "relative_attention": True, "pos_att_type": ("p2c", "c2p"),
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "pooler_hidden_act": "gelu", "legacy": False,
    },
    "modernbert": {"has_segments": False, "classifier_pooling": "mean"},
}  # fmt: skip
"""`model_type` → values of its config that are no settings."""
_OF_FAMILIES = {
    "embedding_size": 0,
    "num_hidden_groups": 0,
    "position_buckets": -1,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
"""Settings that few families read → their defaults."""
_FEED_FORWARD = {"modernbert": 1.5}
"""`model_type` → usual width of the feed-forward layers, a multiple of the hidden size, where it is not 4."""

STRETCHABLE = ("max_position_embeddings", "global_rope_theta")
"""Settings that may be given beside a ModernBERT as base: its longest text and its rotations."""


class ModelSettings(SettingsPart):
    """Shape of a new model, by default that of its family's base; names are those of `transformers`' configs."""

    model_type: ModelType = "bert"
    """Family of the model, which decides its body and the class that `transformers` loads it as."""
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: Annotated[int, Field(ge=1)] | None = None
    """Width of the feed-forward layers; by default four times the hidden size, in modernbert one and a half times."""
    hidden_act: str = "gelu"
    hidden_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    attention_probs_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_position_embeddings: int = 512
    layer_norm_eps: Annotated[float, Field(gt=0)] = 1e-12
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of fresh weights. The paper's suits its width; narrow models learn sooner from a larger one."""
    vocab_multiple: Annotated[int, Field(ge=1)] = 1
    """Number that the rows of the embedding table are padded to a multiple of; 64 is faster on GPUs."""
    embedding_size: Annotated[int, Field(ge=0)] = 0
    """Width of the embeddings, for electra, albert and deberta-v2; 0 is hidden_size."""
    num_hidden_groups: Annotated[int, Field(ge=0)] = 0
    """Number of groups of layers that share their weights, for albert."""
    position_buckets: int = -1
    """Rows of each direction of the table of distances, for deberta-v2; below 1 each distance has its own."""
    local_attention: Annotated[int, Field(ge=0)] = 128
    """Tokens that a sliding layer's token sees, both sides together, for modernbert."""
    global_attn_every_n_layers: Annotated[int, Field(ge=1)] = 3
    """Every n-th layer sees the whole text, for modernbert."""
    global_rope_theta: Annotated[float, Field(gt=0)] | None = None
    """Base of the wavelengths of positions in those layers, for modernbert; by default 160,000, or what a base has."""

    @model_validator(mode="before")
    @classmethod
    def _of_family(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {**PUBLISHED.get(str(given.get("model_type")), {}), **given}

    @model_validator(mode="after")
    def _read_by_family(self) -> "ModelSettings":
        family = FAMILIES[self.model_type]
        known = (*family.own_keys, *family.body.words())
        for name, default in _OF_FAMILIES.items():
            if name not in known and getattr(self, name) != default:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) means nothing to model_type {self.model_type!r}"
                )
        return self


def new_config(shape: ModelSettings, vocab_size: int, pad_id: int) -> BertConfig:
    """Return the configuration of a new model over a vocabulary. Raises ConfigError for a shape that breaks a rule."""
    family, theta = FAMILIES[shape.model_type], shape.global_rope_theta
    if theta is not None and "global_rope_theta" not in family.body.words():
        raise ConfigError(f"global_rope_theta ({theta:g}) means nothing to model_type {shape.model_type!r}")
    values = shape.model_dump(exclude_none=True)
    values.setdefault("intermediate_size", int(_FEED_FORWARD.get(shape.model_type, 4) * shape.hidden_size))
    values["vocab_size"] = -(-vocab_size // shape.vocab_multiple) * shape.vocab_multiple
    of_heads = ("classifier_dropout", "qa_dropout")
    values |= {name: value for name, value in family.config_defaults.items() if name in of_heads}
    return BertConfig.of_words({**values, **_FIXED.get(shape.model_type, {}), "pad_token_id": pad_id})


def with_longer_texts(config: BertConfig, shape: ModelSettings) -> BertConfig:
    """Return the config of a ModernBERT base that goes on with more positions or slower rotations: no weight hangs on them.

    Raises ConfigError for another base, whose positions are weights.
    """
    asked = shape.model_dump(include=set(STRETCHABLE), exclude_defaults=True)
    if not asked:
        return config
    longest = asked.get("max_position_embeddings", config.max_position_embeddings)
    return replace(
        config, max_position_embeddings=longest, body=config.body.stretched(config.model_type, asked)
    )
