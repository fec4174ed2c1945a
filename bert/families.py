"""The relatives of BERT that share its body: how each one's checkpoint says what BERT's says in other words.

A checkpoint is read as if BERT had written it, and written back in the words of its family, so that `transformers` loads
it as its own class. Here alone a family has a name; all other code knows one BERT.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bert.errors import UnsupportedModelError

Array = TypeVar("Array")
Names = tuple[tuple[str, str], ...]
"""Pairs of BERT's name and the family's: the beginnings of tensor names, `*` for a layer's number."""

WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
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
    task_ids: str = ""
    """Key of `config.json` that says whether the first row of TASKS is added to every token's embedding."""
    pooler_act: str = "tanh"
    """Activation of the layer between the first token's vector and the classifier."""
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
        return {**found, **self.config_fixed}

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in the family's words, of one in BERT's."""
        kept = {key: value for key, value in values.items() if key not in self.config_fixed}
        return {self.config_keys.get(key, key): value for key, value in kept.items()}

    def own_class(self, name: str) -> str:
        """Return the name of a class in `transformers`, of BERT's."""
        return _renamed(name, "Bert", self.classes)

    def bert_name(self, name: str) -> str:
        """Return a tensor's name in BERT's words, the body's with `bert.` before it; one that has it already stays.

        TensorFlow's gamma and beta become weight and bias; a bare body has no prefix in its file.
        """
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        for ours, theirs in self.head_names:
            if found := _replaced(name, theirs, ours):
                return found
        body = name.removeprefix(self.prefix)
        for ours, theirs in self.body_names:
            if found := _replaced(body, theirs, ours):
                return f"{_BODY}{found}"
        return f"{_BODY}{body}" if body.startswith(_BARE) else name

    def own_name(self, name: str) -> str:
        """Return a tensor's name in the family's words, of BERT's."""
        for ours, theirs in self.head_names:
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
        found: dict[str, Any] = {self.bert_name(name): tensor for name, tensor in weights.items()}
        if not self.has_segments and WORDS in found:
            rows = found[WORDS][: self.config_fixed["type_vocab_size"]]
            found[SEGMENTS] = rows - rows
        if self.task_ids and (tasks := found.pop(TASKS, None)) is not None and config.get(self.task_ids):
            found[SEGMENTS] = found[SEGMENTS] + tasks[:1]
        return found

    def own_weights(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors under the family's names, without what it lacks, of those under BERT's."""
        kept = (name for name in weights if self.has_segments or name != SEGMENTS)
        return {self.own_name(name): weights[name] for name in kept}


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
    )
}
"""`model_type` → family. A new one with BERT's body is one row here."""


def family_of(values: Mapping[str, Any]) -> Family:
    """Return the family of a `config.json`; without a `model_type` it is BERT's. Raises UnsupportedModelError."""
    model_type = values.get("model_type", "bert")
    if str(model_type) not in FAMILIES:
        raise UnsupportedModelError(f"model_type is {model_type!r}; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
