"""A model's configuration, read from and written as the ecosystem's `config.json`, in the words of its family."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bert.bodies.bert import BertBody
from bert.bodies.body import Body
from bert.bodies.family import Family
from bert.bodies.sizes import ACTIVATIONS, Sizes, check_activation, plain_activation, require_rate
from bert.errors import ConfigError, UnsupportedModelError
from bert.families import family_of
from bert.files import read_object

# Keys whose presence says that a file with `model_type: bert` holds another graph (MosaicBERT and code on the hub).
_FOREIGN_KEYS = {
    "alibi_starting_size": "its positions are ALiBi slopes, not learned embeddings",
    "lora_adaptations": "it has an adapter for each task inside, as jina-embeddings-v3 does",
}
# The same of keys whose value may be empty.
_FOREIGN_VALUES = {
    "num_experts": "some of its layers are mixtures of experts",
    "pruned_heads": "its layers differ in the number of their attention heads; save the model unpruned",
    "quantization_config": "its weights are quantised; export the model that it was made from",
}


def read_values(path: Path) -> dict[str, Any]:
    """Return the content of a `config.json`, given itself or its folder. Raises CheckpointError."""
    file = path / "config.json" if path.is_dir() else path
    return read_object(file, "a checkpoint folder holds config.json")


def refuse_other_graphs(values: Mapping[str, Any], family: Family) -> None:
    """Raise UnsupportedModelError, with the reason, if a `config.json` describes another body than BERT's.

    Raises ConfigError for a list of classes that is none.
    """
    names = values.get("architectures")
    if names is not None and not (
        isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    ):
        raise ConfigError(f"architectures ({names!r}) must be a list of names of classes")
    for key, reason in _FOREIGN_KEYS.items():
        if key in values:
            raise UnsupportedModelError(f"the config has {key!r}, so this is not plain BERT: {reason}")
    position_type = values.get("position_embedding_type") or "absolute"
    if position_type != "absolute" and "position_embedding_type" not in family.config_required:
        raise UnsupportedModelError(
            f"position_embedding_type is {position_type!r}; plain BERT has 'absolute' (learned) positions"
        )
    if values.get("is_decoder"):
        raise UnsupportedModelError("is_decoder is true; an encoder is needed")
    for key, reason in _FOREIGN_VALUES.items():
        if values.get(key):
            raise UnsupportedModelError(f"the config has {key!r}: {reason}")
    if values.get("use_task_id") and family.model_type == "bert":
        raise UnsupportedModelError(
            "use_task_id is true, so this is an ERNIE that was saved as a BERT: set model_type to 'ernie'"
        )
    for key, needed in family.config_required.items():
        if (found := values.get(key, needed)) != needed:
            raise UnsupportedModelError(f"{key} is {found!r}; only {needed!r} is read")


def remark_on_code(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a remark where a `config.json` names Python code of the checkpoint's own; nothing else looks at the key."""
    if not values.get("auto_map"):
        return ()
    family = values.get("model_type", "bert")
    return (
        f"config.json has auto_map: the checkpoint's own Python code is not run, its weights are read as {family!r}",
    )


@dataclass(frozen=True, slots=True)
class BertConfig(Sizes):
    """All that fixes the graph of a BERT or a relative: its sizes, its body, its family."""

    model_type: str = "bert"
    """Family whose words a checkpoint is written in."""
    has_segments: bool = True
    """Both texts of a pair have vectors of their own; without them the segment table is zero and stays so."""
    body: Body = BertBody()  # noqa: RUF009 - it cannot be changed
    """Body of the model: the kind of its layers, with its own keys of `config.json`."""
    pooler_hidden_act: str = ""
    """Activation of the pooler; "" is that of the family."""
    pooler_dropout: float = 0.0
    classifier_dropout: float | None = None
    """Dropout before a classifier; None is hidden_dropout_prob."""
    qa_dropout: float = 0.0
    """Dropout before the layer that finds answers."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        self.check()
        for name in ("classifier_dropout", "qa_dropout", "pooler_dropout"):
            if (rate := getattr(self, name)) is not None:
                require_rate(name, rate)
        check_activation("pooler_act", self.pooler_act, (*ACTIVATIONS, "tanh"))
        self.body.check(self)

    @property
    def projects_embeddings(self) -> bool:
        """Tell whether a linear layer leads from the embeddings to the layers."""
        if self.body.projects_before_norm:
            return False
        return self.family.always_projects or self.embedding_width != self.hidden_size

    @property
    def widens_embeddings(self) -> bool:
        """Tell whether embeddings are widened before their norm."""
        return self.body.projects_before_norm and self.embedding_width != self.hidden_size

    @property
    def pooler_act(self) -> str:
        """Activation between the first token's vector and the classifier."""
        return self.pooler_hidden_act or self.family.pooler_act

    @property
    def mlm_act(self) -> str:
        """Activation of the masked language model's head."""
        return self.body.head_act or self.family.mlm_act or self.hidden_act

    @property
    def is_plain_body(self) -> bool:
        """Tell whether the body is BERT's own: a file of BERT can hold it."""
        is_stacked = self.layer_order == tuple(range(self.num_hidden_layers))
        has_its_layers = type(self.body) is BertBody  # those of a body made from it are others
        return has_its_layers and is_stacked and not self.projects_embeddings

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
        return self.pooled_dropout if self.family.drops_answers_for_classifier else self.qa_dropout

    @property
    def family(self) -> Family:
        """Words of its checkpoints, and what sets it apart from BERT."""
        of_names = {"model_type": self.model_type, "inner_group_num": self.inner_group_num}
        return family_of({**self.body.written(), **of_names})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Build from the content of a `config.json`; keys that do not shape the graph are left out.

        Raises UnsupportedModelError where the graph is not BERT's or a known relative's, ConfigError for a broken value.
        """
        family = family_of(values)
        refuse_other_graphs(values, family)
        return cls.of_words(family.bert_config(values))

    @classmethod
    def of_words(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Build from values under BERT's keys and the words of the family's body. Raises as `from_dict`."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        if "hidden_act" in known:
            known["hidden_act"] = plain_activation(known["hidden_act"])
        return cls(**{**known, "body": family_of(values).body.read(values)})

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
        values = {"position_embedding_type": "absolute", **asdict(self)}
        del values["body"]
        return self.family.own_config({**values, **self.body.written()})
