"""Checkpoints of nomic-bert and gte, which come in two forms: as they were published, and as `transformers` 5 has them.

The published ones have other keys and names, and several linear layers in one. Both are read, and the second is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bert.bodies.body import EMBEDDING, MLM_HEAD
from bert.bodies.family import Family, Names
from bert.bodies.rotary import RotaryBody
from bert.bodies.sizes import is_whole
from bert.errors import CheckpointError, ConfigError

_LENGTHS = ("max_position_embeddings", "max_trained_positions")
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_DENSE = f"{MLM_HEAD}.transform.dense"


@dataclass(frozen=True, slots=True, eq=False)
class Rotary(Family):
    """A family whose published files are in words of their own."""

    written_as: str = ""
    """`model_type` that `transformers` has for it, where the published one is another."""
    published_keys: Mapping[str, str] = field(default_factory=dict)
    """Published key of `config.json` → BERT's."""
    published_names: Names = ()
    """Pairs of a part of the published tensors' names and what `transformers` has in its place, dots around both."""
    published_prefix: str = ""
    """Beginning of the body's published tensor names."""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Published name, within a layer, of a linear layer that holds several → their names in `transformers`."""

    def bert_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` of either form under BERT's keys and class names."""
        found = dict(values)
        for theirs, ours in self.published_keys.items():
            said = found.pop(theirs, None)
            own = found[ours] = said if found.get(ours) is None else found[ours]
            if said not in (None, own):
                raise ConfigError(
                    f"{theirs} ({said!r}) and {ours} ({own!r}) differ: delete what is not meant"
                )
        # No longer than it was trained: beyond, rotations would depend on the text's length.
        default = self.config_defaults["max_position_embeddings"]
        lengths = [found[key] for key in _LENGTHS if found.get(key) is not None] or [default]
        lengths += [] if found.get("n_positions") is None else [found["n_positions"]]
        found["max_position_embeddings"] = min(lengths) if all(map(is_whole, lengths)) else lengths[0]
        if self.written_as:
            found["model_type"] = self.written_as
        return Family.bert_config(self, found)

    def _has_segments(self, config: Mapping[str, Any]) -> bool:
        rows = config.get("type_vocab_size")
        rows = self.config_defaults.get("type_vocab_size", 2) if rows is None else rows
        return isinstance(rows, bool) or rows not in (0, 1)

    def bert_name(self, name: str) -> str:
        """Return a tensor's name in BERT's words, of either form."""
        if name.startswith(self.published_prefix):
            name = self.prefix + name.removeprefix(self.published_prefix)
        dotted = f".{name}."
        for theirs, ours in self.published_names:
            dotted = dotted.replace(f".{theirs}.", f".{ours}.")
        return Family.bert_name(self, dotted[1:-1])

    def bert_weights(self, weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a file's tensors under BERT's names; a masked language model's head without biases gets zeros."""
        found = Family.bert_weights(self, self._apart(weights), config)
        if f"{_DENSE}.weight" in found and f"{_DENSE}.bias" not in found:
            first = found[f"{_DENSE}.weight"][:, 0]
            found[f"{_DENSE}.bias"] = first - first
            if EMBEDDING in found and not found.keys() & {f"{MLM_HEAD}.bias", f"{MLM_HEAD}.decoder.bias"}:
                found[f"{MLM_HEAD}.bias"] = found[EMBEDDING][:, 0] - found[EMBEDDING][:, 0]
        return found

    def _apart(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors with those apart that are in one. Raises CheckpointError."""
        found = dict(weights)
        for name, at in ((name, at) for name in weights for at in self.fused if f".{at}." in name):
            tensor, parts = found.pop(name), self.fused[at]
            if not tensor.shape or tensor.shape[0] % len(parts):
                raise CheckpointError(
                    f"{name} has shape {tuple(tensor.shape)}, and holds {len(parts)} layers"
                )
            rows = tensor.shape[0] // len(parts)
            for number, part in enumerate(parts):
                own = name.replace(f".{at}.", f".{part}.")
                if own in found:
                    raise CheckpointError(
                        f"the weights have {name!r} and {own!r}, which are one tensor: take one out"
                    )
                found[own] = tensor[number * rows : (number + 1) * rows]
        return found


NOMIC = Rotary(
    "nomic_bert", RotaryBody, classes="NomicBert", prefix="nomic_bert.",
    config_defaults={
        "vocab_size": 30528, "hidden_act": "silu", "max_position_embeddings": 2048, "default_theta": 1000.0,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    config_fixed={"position_embedding_type": "absolute", "biases": False},
    config_required={
        "position_embedding_type": "rope", "activation_function": "swiglu",
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
        "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False,
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    },
    published_keys={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
        "resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob",
    },
    published_names=(
        ("encoder.layers", "layers"), ("emb_ln", "embeddings.LayerNorm"), ("attn.out_proj", "self_attn.o_proj"),
        ("fc11", "up_proj"), ("fc12", "gate_proj"), ("fc2", "down_proj"),
        ("norm1", "post_attention_layernorm"), ("norm2", "post_mlp_layernorm"),
    ),
    published_prefix="bert.",
    fused={"attn.Wqkv": _PROJECTIONS},
    layer="layers.*",
    layer_names=(
        *zip((f"attention.self.{part}" for part in ("query", "key", "value")), _PROJECTIONS, strict=True),
        ("attention.output.dense", "self_attn.o_proj"), ("attention.output.LayerNorm", "post_attention_layernorm"),
        ("intermediate.dense", "mlp.gate_proj"), ("intermediate.up", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"), ("output.LayerNorm", "post_mlp_layernorm"),
    ),
    head_names=(("cls.predictions.transform.LayerNorm", "cls.predictions.transform.layer_norm"),),
    linear_layers=(*Family().linear_layers, "intermediate.up"),
    has_pair_head=False,
    unknown_classes=("ForQuestionAnswering", "ForMultipleChoice"),
)  # fmt: skip
GTE = replace(
    NOMIC, model_type="gte", classes="Gte", prefix="gte.",
    config_defaults={
        "vocab_size": 250048, "max_position_embeddings": 8192, "default_theta": 160_000.0,
        "type_vocab_size": 1, "pad_token_id": 1, "attention_probs_dropout_prob": 0.0,
    },
    config_fixed={"position_embedding_type": "absolute", "biases": True},
    config_required={
        "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
        "logn_attention_scale": False, "pack_qkv": True,
    },
    published_keys={},
    published_names=(
        ("encoder.layer", "layers"), ("attention.o_proj", "self_attn.o_proj"),
        ("attn_ln", "post_attention_layernorm"), ("mlp_ln", "post_mlp_layernorm"),
        ("lm_head.norm", "lm_head.layer_norm"),
    ),
    published_prefix="new.",
    fused={"attention.qkv_proj": _PROJECTIONS, "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj")},
    head_names=(
        (_DENSE, "lm_head.dense"), ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.decoder.weight", "lm_head.decoder.weight"), ("cls.predictions.bias", "lm_head.decoder.bias"),
    ),
    mlm_act="gelu",
    drops_gated=True,
)  # fmt: skip
NEW = replace(
    GTE, model_type="new", classes="New", written_as="gte",
    config_defaults={
        **GTE.config_defaults,
        "vocab_size": 30528, "max_position_embeddings": 2048, "pad_token_id": 0, "default_theta": 10_000.0,
    },
)  # fmt: skip
"""gte as Alibaba-NLP publishes it: its code has other defaults."""
