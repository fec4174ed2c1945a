"""BERT's shape, read from and written as the ecosystem's `config.json`, in the words of its family."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from bert.families import family_of
from bert.relatives.checks import check_distances, is_whole, number, require_positive
from bert.relatives.config_file import read_values, refuse_other_graphs
from bert.relatives.family import Family
from bert.relatives.modern import ModernShape
from bert.relatives.relative_positions import BUCKETS

MAX_LAYERS = 1000
"""A broken config may ask for a billion, which would be counted one by one."""
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "quick_gelu")
_SAME_ACTIVATIONS = {
    **dict.fromkeys(("gelu_python", "gelu_10"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), "gelu_new"),
    "swish": "silu",
}
"""Other names of the same functions in `transformers`, which differ by their rounding only."""


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The numbers that fix the graph of a BERT or a relative; names and defaults are Hugging Face's, those of BERT base.

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
    model_type: str = "bert"
    """Family whose words a checkpoint is written in."""
    has_segments: bool = True
    """Both texts of a pair have vectors of their own; without them the segment table is zero and stays so."""
    embedding_size: int = 0
    """Width of the embeddings; 0 is hidden_size. Code reads `embedding_width`."""
    num_hidden_groups: int = 0
    """Number of groups of layers that share their weights; 0 gives each layer weights of its own."""
    inner_group_num: int = 1
    """Number of layers, each with its own weights, in one application of a group."""
    relative_attention_num_buckets: int = 0
    """Rows of the table of attention biases by distance (`bert.relatives.relative_positions`); 0 is no such table."""
    modern: ModernShape | None = None
    """Shape of ModernBERT's body: rotations, windows, biases; None for BERT's body."""
    position_biased_input: bool = True
    """Embeddings have a table of positions."""
    pos_att_type: tuple[str, ...] = ()
    """Terms of the scores that depend on distances (`bert.relatives.distances`): a query's with a distance ("c2p"), a
    key's with one ("p2c"), or both."""
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
    pooler_hidden_act: str = ""
    """Activation of the pooler; "" is that of the family."""
    pooler_dropout: float = 0.0
    legacy: bool = True
    """The masked language model's head has BERT's names in DeBERTa's files; without, names of its own."""
    classifier_dropout: float | None = None
    """Dropout before a classifier; None is hidden_dropout_prob."""
    qa_dropout: float = 0.0
    """Dropout before the layer that finds answers."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            require_positive(name, getattr(self, name))
        for name in ("intermediate_size", "max_position_embeddings", "type_vocab_size"):
            require_positive(name, getattr(self, name))
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_attention_heads}) must divide hidden_size ({self.hidden_size})"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act is {self.hidden_act!r}; known are {', '.join(ACTIVATIONS)}")
        for name in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "classifier_dropout",
            "qa_dropout",
            "pooler_dropout",
        ):
            if (rate := getattr(self, name)) is not None and not 0 <= number(name, rate) < 1:
                raise ConfigError(f"{name} ({rate}) must be at least 0 and below 1")
        for name in ("layer_norm_eps", "initializer_range"):
            if not number(name, getattr(self, name)) > 0:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be above 0")
        if not is_whole(self.pad_token_id) or not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(
                f"pad_token_id ({self.pad_token_id!r}) must be at least 0 and below vocab_size "
                f"({self.vocab_size})"
            )
        self._check_shape_of_relatives()

    def _check_shape_of_relatives(self) -> None:
        for name in ("embedding_size", "num_hidden_groups"):
            if not is_whole(value := getattr(self, name)) or value < 0:
                raise ConfigError(f"{name} ({value!r}) must be a whole number of at least 0")
        require_positive("inner_group_num", self.inner_group_num)
        layers = max(self.num_hidden_layers, self.num_hidden_groups) * self.inner_group_num
        if layers > MAX_LAYERS:
            raise ConfigError(
                f"{layers} layers (num_hidden_layers, times those of a group) are over {MAX_LAYERS}"
            )
        buckets = self.relative_attention_num_buckets
        if buckets and (not is_whole(buckets) or buckets < BUCKETS):
            raise ConfigError(f"relative_attention_num_buckets ({buckets!r}) must be 0 or at least {BUCKETS}")
        check_distances(self, (*ACTIVATIONS, "tanh"))
        if self.modern is not None:
            self.modern.check(self.num_hidden_layers, self.head_size)
            if self.modern.classifier_activation not in ACTIVATIONS:
                raise ConfigError(
                    f"classifier_activation is {self.modern.classifier_activation!r}; known are {', '.join(ACTIVATIONS)}"
                )

    @property
    def embedding_width(self) -> int:
        """Width E of the embeddings and of the masked language model's last hidden state."""
        return self.embedding_size or self.hidden_size

    @property
    def projects_embeddings(self) -> bool:
        """Tell whether a linear layer leads from the embeddings to the layers."""
        if self.family.projects_before_norm:
            return False
        return self.family.always_projects or self.embedding_width != self.hidden_size

    @property
    def widens_embeddings(self) -> bool:
        """Tell whether embeddings are widened before their norm."""
        return self.family.projects_before_norm and self.embedding_width != self.hidden_size

    @property
    def furthest(self) -> int:
        """Distance beyond which all share a row of the table of distances."""
        return (
            self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings
        )

    @property
    def distance_span(self) -> int:
        """Number of rows of each direction of the table of distances."""
        return self.position_buckets if self.position_buckets > 0 else self.furthest

    @property
    def score_scale(self) -> float:
        """Factor of attention's scores, of which each term that depends on distances is one more sum."""
        return float((self.head_size * (1 + len(self.pos_att_type))) ** -0.5)

    @property
    def pooler_act(self) -> str:
        """Activation between the first token's vector and the classifier."""
        return self.pooler_hidden_act or self.family.pooler_act

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

    @property
    def is_plain_body(self) -> bool:
        """Tell whether the body is BERT's own: a file of BERT can hold it."""
        is_stacked = self.layer_order == tuple(range(self.num_hidden_layers))
        has_positions = self.position_biased_input and not self.relative_attention_num_buckets
        plain_layers = not self.pos_att_type and self.conv_kernel_size < 1 and not self.widens_embeddings
        is_bert = self.modern is None and has_positions
        return is_stacked and is_bert and plain_layers and not self.projects_embeddings

    @property
    def pooled_dropout(self) -> float:
        """Dropout between the pooler and the classifier."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def token_dropout(self) -> float:
        """Dropout before the classifier of tokens."""
        return self.pooled_dropout if self.family.drops_tokens_for_classifier else self.hidden_dropout_prob

    @property
    def answer_dropout(self) -> float:
        """Dropout before the layer that finds answers."""
        return self.qa_dropout if self.modern is None else self.pooled_dropout

    @property
    def family(self) -> Family:
        """Words of its checkpoints, and what sets it apart from BERT."""
        return family_of(
            {
                "model_type": self.model_type,
                "inner_group_num": self.inner_group_num,
                "legacy": self.legacy,
            }
        )

    @property
    def mlm_act(self) -> str:
        """Activation of the masked language model's head."""
        if self.modern is not None:
            return self.modern.classifier_activation
        return self.family.mlm_act or self.hidden_act

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Build from the content of a `config.json`; keys that do not shape the graph are left out.

        Raises UnsupportedModelError where the graph is not BERT's or a known relative's, ConfigError for a broken value.
        """
        family = family_of(values)
        refuse_other_graphs(values, family)
        values = family.bert_config(values)
        if isinstance(name := values.get("hidden_act"), str):
            values["hidden_act"] = _SAME_ACTIVATIONS.get(name, name)
        if isinstance(shape := values.get("modern"), ModernShape):
            name = shape.classifier_activation
            same = _SAME_ACTIVATIONS.get(name, name) if isinstance(name, str) else name
            values["modern"] = replace(shape, classifier_activation=same)
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})

    @classmethod
    def read(cls, path: Path) -> "BertConfig":
        """Read `config.json`, given itself or its folder."""
        return cls.from_dict(read_values(path))

    def check_fits(self, pieces: int, max_tokens: int, segments: int = 1) -> None:
        """Raise ConfigError for a vocabulary, a length or segments that the weights cannot serve.

        Found later it is an index error or NaN. `pieces` and `segments` are one more than the tokenizer's highest
        ids; a model may have more.
        """
        if pieces > self.vocab_size:
            raise ConfigError(
                f"the tokenizer's ids go up to {pieces - 1}, and the model has {self.vocab_size} pieces: "
                "they do not belong together"
            )
        if segments > self.type_vocab_size:
            raise ConfigError(
                f"the tokenizer's segments go up to {segments - 1}, and the model has {self.type_vocab_size} "
                "(type_vocab_size): they do not belong together"
            )
        if max_tokens > self.max_position_embeddings:
            raise ConfigError(
                f"max_tokens ({max_tokens}) must be at most the model's positions "
                f"({self.max_position_embeddings})"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a `config.json` that `transformers` loads as the family's own class."""
        return self.family.own_config({"position_embedding_type": "absolute", **asdict(self)})
