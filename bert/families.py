"""The relatives of BERT that share its body: how each one's checkpoint says what BERT's says in other words.

A checkpoint is read as if BERT had written it, and written back in the words of its family, so that `transformers` loads
it as its own class. Here alone a family has a name; all other code knows one BERT.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from bert.errors import CheckpointError, ConfigError, UnsupportedModelError

Array = TypeVar("Array")
Names = tuple[tuple[str, str], ...]
"""Pairs of BERT's name and the family's: the beginnings of tensor names."""

WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
TASKS = "bert.embeddings.task_type_embeddings.weight"
_BODY = "bert."
_BARE = ("embeddings.", "embeddings_project.", "encoder.", "pooler.")
_OWN_KEYS = (
    "embedding_size",
    "num_hidden_groups",
    "inner_group_num",
    "relative_attention_num_buckets",
    "qa_dropout",
)
"""Keys of `config.json` that few families read; in the files of the others they mean nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One kind of checkpoint. The defaults are BERT's own."""

    model_type: str = "bert"
    """Its name in `config.json`."""
    classes: str = "Bert"
    """Beginning of its class names in `transformers`."""
    prefix: str = "bert."
    """Beginning of the body's tensor names, which files of a bare body lack."""
    config_keys: Mapping[str, str] = field(default_factory=dict)
    """BERT's key of `config.json` → the family's."""
    config_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values, by BERT's keys, of keys that a `config.json` leaves out, where they are not BERT's."""
    config_fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values, by BERT's keys, that the family's code fixes: its `config.json` has no such keys."""
    config_required: Mapping[str, Any] = field(default_factory=dict)
    """Values of the family's own keys, where it has them, that alone are read."""
    own_keys: tuple[str, ...] = ()
    """Keys of _OWN_KEYS that it reads."""
    layer: str = "encoder.layer.*"
    """Beginning of a layer's tensor names: `*` is its number, or its group's number and its number in the group."""
    group_size: int = 1
    """Number of layers in a group."""
    layer_names: Names = ()
    """Names within a layer."""
    body_names: Names = ()
    """Names without the prefix."""
    head_names: Names = ()
    class_names: Mapping[str, Names] = field(default_factory=dict)
    """The same for one class: the end of its name in `transformers` → names."""
    task_ids: str = ""
    """Key of `config.json` that says whether the first row of TASKS is added to every token's embedding."""
    starts_after_pad: bool = False
    """The first token's position is the padding's id + 1: the rows before it are read by padding only, and left out."""
    pooler_act: str = "tanh"
    """Activation of the layer between the first token's vector and the classifier."""
    mlm_act: str = ""
    """Activation of the masked language model's head; "" is that of the layers."""
    has_segment_table: bool = True
    """Its files have vectors of segments. Without them the table is zero and stays so."""
    always_projects: bool = False
    """Embeddings go through a layer of their own also where they are as wide as the encoder."""
    drops_tokens_for_classifier: bool = True
    """The dropout of `classifier_dropout` is that of token classification too."""

    def bert_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` under BERT's keys and class names; other keys stay.

        A null counts as a missing key: some files have `pad_token_id: null`.
        """
        found = {key: value for key, value in values.items() if value is not None}
        for ours, theirs in self.config_keys.items():
            if theirs in found:
                found[ours] = found.pop(theirs)
        found = {**self.config_defaults, **found}
        for key in _OWN_KEYS:
            if key not in self.own_keys:
                found.pop(key, None)
        if isinstance(names := values.get("architectures"), list | tuple):
            found["architectures"] = [_renamed(str(name), self.classes, "Bert") for name in names]
        if self.starts_after_pad and isinstance(found["max_position_embeddings"], int):
            found["max_position_embeddings"] -= self._first_position(values)
        found["has_segments"] = self._has_segments(values)
        if not found["has_segments"]:
            found["type_vocab_size"] = 2
        return {**found, **self.config_fixed}

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in the family's words, of one in BERT's."""
        kept = {key: value for key, value in values.items() if key not in self.config_fixed}
        for key in _OWN_KEYS:
            if key not in self.own_keys:
                kept.pop(key, None)
        if kept.get("embedding_size") == 0:
            kept["embedding_size"] = kept["hidden_size"]
        if self.starts_after_pad:
            kept["max_position_embeddings"] += self._first_position(values)
        if not self.has_segment_table:
            kept.pop("type_vocab_size", None)
        elif not kept.pop("has_segments", True):
            kept["type_vocab_size"] = 1
        kept.pop("has_segments", None)
        return {self.config_keys.get(key, key): value for key, value in kept.items()}

    def _first_position(self, config: Mapping[str, Any]) -> int:
        """Return the position of a text's first token. Raises ConfigError."""
        pad = self.config_fixed.get("pad_token_id", config.get("pad_token_id"))
        pad = self.config_defaults["pad_token_id"] if pad is None else pad
        if not isinstance(pad, int):
            raise ConfigError(f"pad_token_id ({pad!r}) must be a whole number")
        return pad + 1

    def _has_segments(self, config: Mapping[str, Any]) -> bool:
        """Tell whether both texts of a pair have vectors of their own, by the content of a `config.json`."""
        rows = config.get("type_vocab_size")
        return self.has_segment_table and (rows != 1 or isinstance(rows, bool))

    def own_class(self, name: str) -> str:
        """Return the name of a class in `transformers`, of BERT's."""
        return _renamed(name, "Bert", self.classes)

    def bert_name(self, name: str) -> str:
        """Return a tensor's name in BERT's words, the body's with `bert.` before it; one that has it already stays.

        TensorFlow's gamma and beta become weight and bias; a bare body has no prefix in its file.
        """
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        for ours, theirs in (*self.head_names, *chain(*self.class_names.values())):
            if found := _replaced(name, theirs, ours):
                return found
        body = name.removeprefix(self.prefix)
        numbers, part = _layer_part(body, self.layer)
        if part:
            number = numbers[0] * self.group_size + numbers[1] if len(numbers) > 1 else numbers[0]
            named = (found for ours, theirs in self.layer_names if (found := _replaced(part, theirs, ours)))
            return f"{_BODY}encoder.layer.{number}.{next(named, part)}"
        for ours, theirs in self.body_names:
            if found := _replaced(body, theirs, ours):
                return f"{_BODY}{found}"
        return f"{_BODY}{body}" if body.startswith(_BARE) else name

    def own_name(self, name: str, architecture: str) -> str:
        """Return a tensor's name in the family's words, of BERT's and of the name of BERT's class."""
        for ours, theirs in (*self.class_names.get(architecture.removeprefix("Bert"), ()), *self.head_names):
            if found := _replaced(name, ours, theirs):
                return found
        if not name.startswith(_BODY):
            return name
        body = name.removeprefix(_BODY)
        numbers, part = _layer_part(body, "encoder.layer.*")
        if part:
            named = (found for ours, theirs in self.layer_names if (found := _replaced(part, ours, theirs)))
            return f"{self.prefix}{self.own_layer(numbers[0])}.{next(named, part)}"
        named = (found for ours, theirs in self.body_names if (found := _replaced(body, ours, theirs)))
        return self.prefix + next(named, body)

    def own_layer(self, number: int) -> str:
        """Return the beginning of the tensor names of a layer, without the prefix."""
        numbers = divmod(number, self.group_size) if self.layer.count("*") > 1 else (number,)
        parts = self.layer.split("*")
        return "".join(f"{part}{at}" for part, at in zip(parts, numbers, strict=False))

    def bert_weights(self, weights: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
        """Return a file's tensors, numpy's or torch's, under BERT's names, with zeros in place of what the family lacks.

        `config` is the content of `config.json`. Raises CheckpointError.
        """
        # Last what a head names: some files have a pooler too, which it does not read.
        ordered = sorted(weights, key=lambda name: not name.startswith(self.prefix))
        found: dict[str, Any] = {self.bert_name(name): weights[name] for name in ordered}
        if self.starts_after_pad and POSITIONS in found:
            found[POSITIONS] = found[POSITIONS][self._first_position(config) :]
        tasks = found.pop(TASKS, None) if self.task_ids else None
        if self.task_ids and config.get(self.task_ids) and SEGMENTS in found:
            if tasks is None:
                raise CheckpointError(f"{self.task_ids} is true, and the file has no tensor {TASKS!r}")
            found[SEGMENTS] = _with_first_row(found, SEGMENTS, TASKS, tasks)
        if not self._has_segments(config):
            if self.has_segment_table and SEGMENTS in found and POSITIONS in found:
                found[POSITIONS] = _with_first_row(found, POSITIONS, SEGMENTS, found[SEGMENTS])
            if WORDS in found and (SEGMENTS in found or not self.has_segment_table):
                # Two rows: some tokenizers number the texts of a pair all the same.
                found[SEGMENTS] = found[WORDS][:2] - found[WORDS][:2]
        return found

    def own_weights(
        self, weights: Mapping[str, Array], architecture: str, config: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return the tensors of a BERT as the family has them in its files.

        `architecture` is the name of BERT's class, `config` the content of BERT's `config.json`.
        """
        kept: dict[str, Any] = dict(weights)
        if not self.has_segment_table:
            kept.pop(SEGMENTS)
        elif not config.get("has_segments", True):
            kept[SEGMENTS] = kept[SEGMENTS][:1]
        if self.starts_after_pad:
            positions = kept[POSITIONS]
            # Only padding reads the first rows, and its vectors nothing.
            kept[POSITIONS] = positions[[0] * self._first_position(config) + list(range(len(positions)))]
        return {self.own_name(name, architecture): tensor for name, tensor in kept.items()}


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name


def _replaced(name: str, old: str, new: str) -> str:
    """Return the name with another beginning, "" where it begins otherwise."""
    return new + name[len(old) :] if f"{name}.".startswith(f"{old}.") else ""


def _layer_part(name: str, layer: str) -> tuple[list[int], str]:
    """Return the numbers of a layer and the name within it; of another name nothing and ""."""
    pattern = re.escape(layer).replace(r"\*", r"(\d+)")
    match = re.match(rf"{pattern}\.", name)
    return ([int(number) for number in match.groups()], name[match.end() :]) if match else ([], "")


def _with_first_row(tensors: Mapping[str, Any], name: str, added: str, table: Any) -> Any:
    """Return the tensor `name` with the first row of another table added to each row. Raises CheckpointError."""
    if tensors[name].shape[1:] != table.shape[1:]:
        raise CheckpointError(
            f"{name} has shape {tuple(tensors[name].shape)} and {added} {tuple(table.shape)}: their rows cannot be added"
        )
    return tensors[name] + table[:1]


_ROBERTA = Family(
    "roberta",
    classes="Roberta",
    prefix="roberta.",
    config_defaults={"vocab_size": 50265, "pad_token_id": 1, "max_position_embeddings": 512},
    head_names=(
        ("cls.predictions.transform.dense", "lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.decoder", "lm_head.decoder"),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    class_names={
        "ForSequenceClassification": (
            ("bert.pooler.dense", "classifier.dense"),
            ("classifier", "classifier.out_proj"),
        )
    },
    starts_after_pad=True,
    mlm_act="gelu",
)
_DISTILBERT = Family(
    "distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    config_keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    config_defaults={"num_hidden_layers": 6, "classifier_dropout": 0.2, "qa_dropout": 0.1},
    config_fixed={"layer_norm_eps": 1e-12},
    own_keys=("qa_dropout",),
    layer="transformer.layer.*",
    layer_names=(
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
    ),
    head_names=(
        ("bert.pooler.dense", "pre_classifier"),
        ("cls.predictions.transform.dense", "vocab_transform"),
        ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
        ("cls.predictions.decoder.weight", "vocab_projector.weight"),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ),
    pooler_act="relu",
    has_segment_table=False,
    drops_tokens_for_classifier=False,
)
_ELECTRA = Family(
    "electra",
    classes="Electra",
    prefix="electra.",
    config_defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    # The vector that a choice is scored by.
    config_required={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    own_keys=("embedding_size",),
    head_names=(
        ("cls.predictions.transform.dense", "generator_predictions.dense"),
        ("cls.predictions.transform.LayerNorm", "generator_predictions.LayerNorm"),
        ("cls.predictions.decoder.weight", "generator_lm_head.weight"),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    ),
    class_names={
        "ForSequenceClassification": (
            ("bert.pooler.dense", "classifier.dense"),
            ("classifier", "classifier.out_proj"),
        ),
        "ForMultipleChoice": (("bert.pooler.dense", "sequence_summary.summary"),),
    },
    pooler_act="gelu",
    mlm_act="gelu",
)
_ALBERT = Family(
    "albert",
    classes="Albert",
    prefix="albert.",
    config_keys={"classifier_dropout": "classifier_dropout_prob"},
    config_defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
        "num_hidden_groups": 1,
    },
    own_keys=("embedding_size", "num_hidden_groups", "inner_group_num"),
    layer="encoder.albert_layer_groups.*.albert_layers.*",
    layer_names=(
        ("attention.output.dense", "attention.dense"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
        ("attention.self", "attention"),
        ("intermediate.dense", "ffn"),
        ("output.dense", "ffn_output"),
        ("output.LayerNorm", "full_layer_layer_norm"),
    ),
    body_names=(
        ("embeddings_project", "encoder.embedding_hidden_mapping_in"),
        ("pooler.dense", "pooler"),
    ),
    head_names=(
        ("cls.predictions.transform.dense", "predictions.dense"),
        ("cls.predictions.transform.LayerNorm", "predictions.LayerNorm"),
        ("cls.predictions.decoder", "predictions.decoder"),
        ("cls.predictions.bias", "predictions.bias"),
    ),
    always_projects=True,
)
_MPNET = replace(
    _ROBERTA,
    model_type="mpnet",
    classes="MPNet",
    prefix="mpnet.",
    config_defaults={
        "vocab_size": 30527,
        "max_position_embeddings": 512,
        "relative_attention_num_buckets": 32,
    },
    config_fixed={"pad_token_id": 1},
    own_keys=("relative_attention_num_buckets",),
    layer_names=(
        ("attention.self.query", "attention.attn.q"),
        ("attention.self.key", "attention.attn.k"),
        ("attention.self.value", "attention.attn.v"),
        ("attention.output.dense", "attention.attn.o"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
    ),
    has_segment_table=False,
)
_OF_ITS_SIZE = {**_ROBERTA.config_defaults, "vocab_size": 30522}
FAMILIES = {
    family.model_type: family
    for family in (
        Family(),
        _DISTILBERT,
        # Written back with its task in the segments: without task ids.
        Family("ernie", classes="Ernie", prefix="ernie.", task_ids="use_task_id"),
        _ROBERTA,
        replace(_ROBERTA, model_type="xlm-roberta", classes="XLMRoberta", config_defaults=_OF_ITS_SIZE),
        replace(_ROBERTA, model_type="camembert", classes="Camembert", config_defaults=_OF_ITS_SIZE),
        _ELECTRA,
        _ALBERT,
        _MPNET,
    )
}
"""`model_type` → family. A new one with BERT's body is one row here."""


REFUSED = {
    "bart": "it has a decoder",
    "canine": "it reads characters, not pieces",
    "convbert": "its layers mix attention with convolution",
    "deberta": "its attention depends on distances; not yet",
    "deberta-v2": "its attention depends on distances; not yet",
    "eurobert": "its positions are rotations and its norms RMSNorm",
    "funnel": "it shortens the text from layer to layer",
    "gte": "its positions are rotations and its layers gated",
    "jina_embeddings_v3": "it has an adapter for each task inside",
    "longformer": "its attention is local",
    "luke": "it reads entities beside words",
    "megatron-bert": "its norms come before each layer",
    "mobilebert": "its layers have bottlenecks and no LayerNorm",
    "modernbert": "its positions are rotations and its attention is local; not yet",
    "mosaic_bert": "its positions are ALiBi slopes",
    "neobert": "its positions are rotations and its norms RMSNorm",
    "new": "its positions are rotations and its layers gated",
    "nomic_bert": "its positions are rotations and its layers gated",
    "nystromformer": "its attention is an approximation",
    "big_bird": "its attention is sparse",
    "rembert": "its embeddings of words and of the output differ",
    "roberta-prelayernorm": "its norms come before each layer",
    "roformer": "its positions are rotations",
    "squeezebert": "its layers are grouped convolutions",
    "t5": "it has a decoder, and positions of its own",
    "umt5": "it has a decoder, and positions of its own",
    "xlm": "it has embeddings of languages, and heads of its own",
    "xlm-roberta-xl": "its norms come before each layer",
    "xlnet": "its attention carries a memory from text to text",
}
"""`model_type` → the reason why another body cannot be read as BERT's."""


def family_of(values: Mapping[str, Any]) -> Family:
    """Return the family of a `config.json`; without a `model_type` it is BERT's. Raises UnsupportedModelError."""
    model_type = str(values.get("model_type", "bert"))
    if model_type not in FAMILIES:
        reason = f": {REFUSED[model_type]}" if model_type in REFUSED else ""
        raise UnsupportedModelError(
            f"model_type is {model_type!r}, which is not read{reason}; known are {', '.join(FAMILIES)}"
        )
    family, group_size = FAMILIES[model_type], values.get("inner_group_num")
    if "inner_group_num" in family.own_keys and isinstance(group_size, int) and group_size > 1:
        return replace(family, group_size=group_size)
    return family
