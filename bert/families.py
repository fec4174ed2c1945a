"""The relatives of BERT that share its body: how each one's checkpoint says what BERT's says in other words.

A checkpoint is read as if BERT had written it, and written back in the words of its family, so that `transformers` loads
it as its own class. Here alone a family has a name; all other code knows one BERT.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from bert.errors import ConfigError, UnsupportedModelError

Array = TypeVar("Array")
Names = tuple[tuple[str, str], ...]
"""Pairs of BERT's name and the family's: the beginnings of tensor names, `*` for a layer's number."""

WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
TASKS = "bert.embeddings.task_type_embeddings.weight"
_BODY = "bert."
_BARE = ("embeddings.", "encoder.", "pooler.")


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
    body_names: Names = ()
    """Names without the prefix."""
    head_names: Names = ()
    class_names: Mapping[str, Names] = field(default_factory=dict)
    """The same for one class: the end of its name in `transformers` → names."""
    task_ids: str = ""
    """Key of `config.json` that says whether the first row of TASKS is added to every token's embedding."""
    starts_after_pad: bool = False
    """The first token's position is the padding's id + 1: the rows before it are read by padding only, and left out."""
    segment_rows: int = 0
    """Rows of the segment table in a file of a family without segments: the first is added to every token's embedding."""
    pooler_act: str = "tanh"
    """Activation of the layer between the first token's vector and the classifier."""
    mlm_act: str = ""
    """Activation of the masked language model's head; "" is that of the layers."""
    has_segments: bool = True
    """Both texts of a pair have vectors of their own. Without them the table is zero and stays so."""

    def bert_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` under BERT's keys and class names; other keys stay."""
        found = {**self.config_defaults, **values}
        for ours, theirs in self.config_keys.items():
            if theirs in found:
                found[ours] = found.pop(theirs)
        if isinstance(names := values.get("architectures"), list | tuple):
            found["architectures"] = [_renamed(str(name), self.classes, "Bert") for name in names]
        if self.starts_after_pad and isinstance(found["max_position_embeddings"], int):
            found["max_position_embeddings"] -= self._first_position(values)
        return {**found, **self.config_fixed}

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in the family's words, of one in BERT's."""
        kept = {key: value for key, value in values.items() if key not in self.config_fixed}
        if self.starts_after_pad:
            kept["max_position_embeddings"] += self._first_position(values)
        if self.segment_rows:
            kept["type_vocab_size"] = self.segment_rows
        return {self.config_keys.get(key, key): value for key, value in kept.items()}

    def _first_position(self, config: Mapping[str, Any]) -> int:
        """Return the position of a text's first token. Raises ConfigError."""
        pad = config.get("pad_token_id")
        pad = self.config_defaults["pad_token_id"] if pad is None else pad
        if not isinstance(pad, int):
            raise ConfigError(f"pad_token_id ({pad!r}) must be a whole number")
        return pad + 1

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
        named = (found for ours, theirs in self.body_names if (found := _replaced(body, ours, theirs)))
        return self.prefix + next(named, body)

    def bert_weights(self, weights: Mapping[str, Array], config: Mapping[str, Any]) -> dict[str, Array]:
        """Return a file's tensors, numpy's or torch's, under BERT's names, with zeros in place of what the family lacks.

        `config` is the content of `config.json`.
        """
        # Last what a head names: some files have a pooler too, which it does not read.
        ordered = sorted(weights, key=lambda name: not name.startswith(self.prefix))
        found: dict[str, Any] = {self.bert_name(name): weights[name] for name in ordered}
        if self.starts_after_pad and POSITIONS in found:
            found[POSITIONS] = found[POSITIONS][self._first_position(config) :]
        if self.segment_rows and POSITIONS in found and SEGMENTS in found:
            found[POSITIONS] = found[POSITIONS] + found[SEGMENTS][:1]
        if not self.has_segments and WORDS in found:
            rows = found[WORDS][: self.config_fixed["type_vocab_size"]]
            found[SEGMENTS] = rows - rows
        if self.task_ids and (tasks := found.pop(TASKS, None)) is not None and config.get(self.task_ids):
            found[SEGMENTS] = found[SEGMENTS] + tasks[:1]
        return found

    def own_weights(
        self, weights: Mapping[str, Array], architecture: str, config: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return the tensors of a BERT as the family has them in its files.

        `architecture` is the name of BERT's class, `config` the content of BERT's `config.json`.
        """
        kept: dict[str, Any] = dict(weights)
        if not self.has_segments:
            segments = kept.pop(SEGMENTS)
            if self.segment_rows:
                kept[SEGMENTS] = segments[: self.segment_rows]
        if self.starts_after_pad:
            positions = kept[POSITIONS]
            # Only padding reads the first rows, and its vectors nothing.
            kept[POSITIONS] = positions[[0] * self._first_position(config) + list(range(len(positions)))]
        return {self.own_name(name, architecture): tensor for name, tensor in kept.items()}


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name


def _replaced(name: str, old: str, new: str) -> str:
    """Return the name with another beginning, "" where it begins otherwise."""
    pattern = re.escape(old).replace(r"\*", r"(\d+)")
    if not (match := re.match(rf"{pattern}(?=\.|$)", name)):
        return ""
    return new.replace("*", match[1] if match.groups() else "") + name[match.end() :]


_LAYER = "encoder.layer.*"
_DISTIL = "transformer.layer.*"
FAMILIES = {
    family.model_type: family
    for family in (
        Family(),
        Family(
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
            },
            config_defaults={"num_hidden_layers": 6},
            # Two rows: tokenizers number the texts of a pair all the same.
            config_fixed={"layer_norm_eps": 1e-12, "type_vocab_size": 2},
            body_names=(
                (f"{_LAYER}.attention.self.query", f"{_DISTIL}.attention.q_lin"),
                (f"{_LAYER}.attention.self.key", f"{_DISTIL}.attention.k_lin"),
                (f"{_LAYER}.attention.self.value", f"{_DISTIL}.attention.v_lin"),
                (f"{_LAYER}.attention.output.dense", f"{_DISTIL}.attention.out_lin"),
                (f"{_LAYER}.attention.output.LayerNorm", f"{_DISTIL}.sa_layer_norm"),
                (f"{_LAYER}.intermediate.dense", f"{_DISTIL}.ffn.lin1"),
                (f"{_LAYER}.output.dense", f"{_DISTIL}.ffn.lin2"),
                (f"{_LAYER}.output.LayerNorm", f"{_DISTIL}.output_layer_norm"),
            ),
            head_names=(
                ("bert.pooler.dense", "pre_classifier"),
                ("cls.predictions.transform.dense", "vocab_transform"),
                ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
                ("cls.predictions.decoder.weight", "vocab_projector.weight"),
                ("cls.predictions.bias", "vocab_projector.bias"),
            ),
            pooler_act="relu",
            has_segments=False,
        ),
        # Written back with its task in the segments: without task ids.
        Family("ernie", classes="Ernie", prefix="ernie.", task_ids="use_task_id"),
        Family(
            "roberta",
            classes="Roberta",
            prefix="roberta.",
            config_defaults={"pad_token_id": 1, "max_position_embeddings": 512},
            config_fixed={"type_vocab_size": 2},
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
            segment_rows=1,
            mlm_act="gelu",
            has_segments=False,
        ),
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
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    reason = f": {REFUSED[model_type]}" if model_type in REFUSED else ""
    raise UnsupportedModelError(
        f"model_type is {model_type!r}, which is not read{reason}; known are {', '.join(FAMILIES)}"
    )
