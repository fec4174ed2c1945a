"""A family of checkpoints: how it says what BERT's say in other words, in `config.json` and in the names of tensors.

A checkpoint is read as if BERT had written it, and written back in the words of its family, so that `transformers` loads
it as its own class.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from bert.bodies.bert import BertBody
from bert.bodies.body import EMBEDDING, POSITIONS, SEGMENTS, Body
from bert.errors import CheckpointError, ConfigError

Array = TypeVar("Array")
Names = tuple[tuple[str, str], ...]
"""Pairs of BERT's name and the family's: the beginnings of tensor names."""

TASKS = "bert.embeddings.task_type_embeddings.weight"
_BODY = "bert."
_BARE = ("embeddings.", "embeddings_project.", "encoder.", "pooler.")
_OWN_KEYS = (
    "embedding_size", "num_hidden_groups", "inner_group_num", "qa_dropout", "pooler_hidden_act", "pooler_dropout",
)  # fmt: skip
"""Keys of `config.json` that few families read; in the files of the others they mean nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One kind of checkpoint. The defaults are BERT's own."""

    model_type: str = "bert"
    """Its name in `config.json`."""
    body: type[Body] = BertBody
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
    unread: tuple[str, ...] = ()
    """Words of its body that it does not read."""
    reads_own_words_only: bool = False
    """BERT's keys mean nothing in its `config.json` where `config_keys` has another."""
    first_id_keys: tuple[str, ...] = ()
    """Keys of `config.json` with the id of the piece before a text. Without them `transformers` fills in the published
    model's."""
    last_id_keys: tuple[str, ...] = ()
    """Keys of `config.json` with the id of the piece after a text."""
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
    """End of a class's name in `transformers` → names without the prefix, for that class only."""
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
    has_pair_head: bool = True
    """`transformers` has a class that is pretrained on words and on pairs of texts."""
    unknown_classes: tuple[str, ...] = ()
    """Ends of the names of classes that `transformers` has for others, and not for it."""
    ignored: str = ""
    """Part of the names of tensors that are no weights."""
    always_projects: bool = False
    """Embeddings go through a layer of their own also where they are as wide as the encoder."""
    has_key_bias: bool = True
    """Keys have a bias, those of distances too. Without it the vectors are zero and stay so."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """Linear layer that holds several of BERT's → how many."""
    drops_attended: bool = True
    """The output of attention goes through the dropout of `hidden_dropout_prob` before it is added."""
    drops_gated: bool = False
    """The product of a gated layer goes through the dropout of `hidden_dropout_prob`."""
    drops_tokens_for_classifier: bool = True
    """The dropout of `classifier_dropout` is that of token classification too."""
    drops_answers_for_classifier: bool = False
    """The dropout of `classifier_dropout` is also the one before the layer that finds answers."""
    linear_layers: tuple[str, ...] = (
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "intermediate.dense", "output.dense",
    )  # fmt: skip
    """Linear layers within a layer, by BERT's names."""
    answer_head: str = "qa_outputs"
    """Name of the layer that finds answers."""
    discriminator: str = ""
    """Name of the head that finds replaced pieces; "" for a family without models of that kind."""
    vocabulary_head: str = "cls.predictions.transform.dense"
    """Name of a layer of the masked language model's head."""
    learning_rates: tuple[tuple[int, int, float], ...] = ((12, 768, 5e-5),)
    """(layers, width, rate): peak learning rates that were published for fine-tuning, the smallest model first. BERT's is
    the highest of Devlin et al. 2018 (arXiv 1810.04805, A.3)."""

    def bert_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` under BERT's keys and class names, without keys that mean nothing in it.

        A null counts as a missing key: some files have `pad_token_id: null`.
        """
        found = {key: value for key, value in values.items() if value is not None}
        for ours, theirs in self.config_keys.items():
            if self.reads_own_words_only and ours != theirs:
                found.pop(ours, None)
            if theirs in found:
                found[ours] = found.pop(theirs)
        found = {**self.config_defaults, **found}
        for key in self._others_keys:
            found.pop(key, None)
        if isinstance(names := values.get("architectures"), list | tuple):
            found["architectures"] = [_renamed(str(name), self.classes, "Bert") for name in names]
        if self.starts_after_pad and isinstance(found["max_position_embeddings"], int):
            found["max_position_embeddings"] -= self._first_position(values)
        found["has_segments"] = self._has_segments(values)
        if not found["has_segments"]:
            found["type_vocab_size"] = 2
        return {**found, **self.config_fixed}

    @property
    def _others_keys(self) -> Iterator[str]:
        """Keys that mean nothing in its `config.json`, and something in that of others."""
        return chain((key for key in _OWN_KEYS if key not in self.own_keys), self.unread)

    def variant(self, values: Mapping[str, Any]) -> "Family":
        """Return the family as a `config.json`, under BERT's keys, has it: names of tensors may depend on its values."""
        group_size = values.get("inner_group_num")
        if "inner_group_num" in self.own_keys and isinstance(group_size, int) and group_size > 1:
            return replace(self, group_size=group_size)
        return self

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in the family's words, of one in BERT's."""
        kept = {key: value for key, value in values.items() if key not in self.config_fixed}
        for key in self._others_keys:
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

    def special_ids(self, cls_id: int, sep_id: int) -> dict[str, int]:
        """Return the keys of a `config.json` that name the pieces around a text, {} for a family without such keys."""
        return dict.fromkeys(self.first_id_keys, cls_id) | dict.fromkeys(self.last_id_keys, sep_id)

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
        if self.ignored:
            ordered = [name for name in ordered if self.ignored not in name]
        self._refuse_two_bodies(weights)
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
            only_row = found.get(SEGMENTS) if self.has_segment_table and POSITIONS not in found else None
            has_place = SEGMENTS in found or not self.has_segment_table or config.get("type_vocab_size") == 0
            if self.body.reads_segments and EMBEDDING in found and has_place:
                # Zeros in their place. Two rows: some tokenizers number the texts of a pair all the same.
                found[SEGMENTS] = found[EMBEDDING][:2] - found[EMBEDDING][:2]
                if only_row is not None:
                    found[SEGMENTS] = _with_first_row(found, SEGMENTS, SEGMENTS, only_row)
        return found

    def _refuse_two_bodies(self, names: Iterable[str]) -> None:
        """Raise CheckpointError where a file has a tensor of the body twice, with and without its prefix or as gamma."""
        heads = [theirs for _, theirs in (*self.head_names, *chain(*self.class_names.values()))]
        seen = dict[str, str]()
        for name in names:
            if any(_replaced(name, theirs, theirs) for theirs in heads):
                continue
            if (other := seen.setdefault(self.bert_name(name), name)) != name:
                raise CheckpointError(
                    f"the weights have {other!r} and {name!r}, which are one tensor: take out the one that is not meant"
                )

    def own_modules(self, parts: Iterable[str], architecture: str) -> list[str]:
        """Return names of linear layers, within a layer, in the family's words; `parts` are BERT's."""
        names = (self.own_name(f"{_BODY}encoder.layer.0.{part}", architecture) for part in parts)
        return [name.removeprefix(f"{self.prefix}{self.own_layer(0)}.") for name in names]

    def split_factors(self, adapter: Mapping[str, Array], heads: int) -> dict[str, Array]:
        """Return the matrices of a LoRA adapter for BERT's linear layers, where the family has some of them in one."""
        return dict(adapter)

    def join_factors(self, adapter: Mapping[str, Array], heads: int) -> dict[str, Array]:
        """Undo `split_factors`."""
        return dict(adapter)

    def split_projections(self, weights: Mapping[str, Array], heads: int) -> dict[str, Array]:
        """Return tensors by BERT's names, with those apart that the family has in one."""
        return dict(weights)

    def own_weights(
        self, weights: Mapping[str, Array], architecture: str, config: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Return the tensors of a BERT as the family has them in its files.

        `architecture` is the name of BERT's class, `config` the content of BERT's `config.json`.
        """
        kept: dict[str, Any] = dict(weights)
        if not self.has_segment_table:
            kept.pop(SEGMENTS, None)
        elif not config.get("has_segments", True):
            kept[SEGMENTS] = kept[SEGMENTS][:1]
        if self.starts_after_pad:
            positions = kept[POSITIONS]
            # Only padding reads the first rows, and nothing reads the vectors of padding.
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
