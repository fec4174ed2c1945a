"""The content of `task.json`, a fine-tuned checkpoint's description of its task."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

from bert.errors import CheckpointError, ConfigError
from bert.files import read_json

TASK_NAMES = (
    *("classification", "open_classification", "ner", "open_ner"),
    *("qa", "similarity", "sparse", "token_vectors", "multiple_choice", "fill_mask"),
)
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Ways to make one vector of a text's. Names are sentence-transformers'."""
DENSE_ACTIVATIONS = ("tanh", "relu", "identity")
SIMILARITIES = ("cosine", "dot")
SPARSE_ACTIVATIONS = ("relu", "log1p_relu")
"""Ways from scores above 0 to sparse weights, by sentence-transformers' names: log(1 + x), and that of it once more."""
IGNORED_WORDS = ("symbols", "handles", "punctuation")
"""Kinds of words that `left_out` keeps out of entities: symbols such as emoji, names after an at sign, punctuation alone."""
LONG_TEXTS = ("cut", "windows")
PROBLEM_TYPES = ("single_label", "multi_label", "regression")
SPAN_MODES = ("markerV0", "marker", "token_level")
"""Heads of models for labels of the request, by GLiNER's names."""
TEXT_POOLINGS, LABEL_POOLINGS = ("first", "separator", "avg"), ("first", "average")
"""Vectors of a text and of a label, in a model that judges all labels of a request in one run."""
MAX_SPAN_WORDS = 128
"""Most words of an entity that a graph is written for: each number of words is a part of its own."""
SCHEMA_VERSION = 1
_SURROGATE = re.compile("[\ud800-\udfff]")

_WITH_LABELS = ("classification", "ner")
_KINDS: dict[Any, str] = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object"}
"""Type of a field → the words for it."""
_KNOWN = {
    "task": TASK_NAMES, "problem_type": PROBLEM_TYPES, "long_texts": LONG_TEXTS, "similarity": SIMILARITIES,
    "activation": ("sigmoid", "identity"), "sparse_activation": SPARSE_ACTIVATIONS,
}  # fmt: skip
"""Field → its possible values. An empty `activation` is none."""
_AT_LEAST = {"max_tokens": 3, "max_question_tokens": 1, "max_answer_tokens": 1, "n_best": 1}
_FIELDS = {"problem": "problem_type"}
"""Keys of `task.json` that have another name here."""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer after the pooling of an embedding."""

    out_features: int
    activation: str = "tanh"
    """One of DENSE_ACTIVATIONS."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        if not isinstance(self.out_features, int) or isinstance(self.out_features, bool):
            raise ConfigError(f"dense: out_features ({self.out_features!r}) must be a whole number")
        if self.out_features < 1:
            raise ConfigError(f"dense: out_features ({self.out_features}) must be at least 1")
        if self.activation not in DENSE_ACTIVATIONS:
            known = ", ".join(DENSE_ACTIVATIONS)
            raise ConfigError(f"dense: activation is {self.activation!r}; known are {known}")


@dataclass(frozen=True, slots=True)
class LabelPrompt:
    """How a model for labels of the request reads them before a text, and what its head is made of."""

    label_id: int
    """Id of the special token before each label."""
    separator_id: int
    """Id of the special token between the labels and the text."""
    span_mode: str
    """One of SPAN_MODES."""
    width: int
    """Numbers of a vector in the head."""
    max_width: int = 12
    """Most words of an entity, of a model that judges spans; words that two windows share at least."""
    max_words: int = 384
    """Most words of a text, or window, that the model was made for."""
    lstm_layers: int = 1
    """Layers of the LSTM over the words; 0 where there is none."""
    reads_label: bool = False
    """A label's vector is that of the piece after its token, not of the token itself."""
    has_encoder: bool = False
    """Labels have an encoder of their own: nothing stands before a text, and the head is given their vectors."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        if self.span_mode not in SPAN_MODES:
            raise ConfigError(f"span_mode is {self.span_mode!r}; read are {', '.join(SPAN_MODES)}")
        sizes = (
            self.label_id,
            self.separator_id,
            self.width,
            self.max_width,
            self.max_words,
            self.lstm_layers,
        )
        if any(type(value) is not int or value < 0 for value in sizes):
            raise ConfigError(f"label_prompt ({self}) must have whole numbers from 0 on")
        if not 1 <= self.max_width <= MAX_SPAN_WORDS or not self.max_words:
            raise ConfigError(
                f"max_width ({self.max_width}) must be 1 to {MAX_SPAN_WORDS}, and max_words 1 or more"
            )
        if not self.width or self.width % 2:
            raise ConfigError(
                f"width ({self.width}) must be even: its halves read the words in each direction"
            )

    @property
    def judges_spans(self) -> bool:
        """Tell whether the head judges spans; else it judges each word as a start, an end and an inside."""
        return self.span_mode != "token_level"


@dataclass(frozen=True, slots=True)
class ClassPrompt:
    """How a model that judges all labels of a request in one run reads them beside a text, and what its head is made of."""

    label_id: int
    """Id of the special token before each label."""
    separator_id: int
    """Id of the special token after the labels."""
    width: int
    """Numbers between the two layers of a projection."""
    text_pooling: str = "first"
    """Vector of the text: that of the "first" token or of the "separator", or the mean ("avg") of all tokens."""
    label_pooling: str = "first"
    """Vector of a label: that of its "first" token, or the "average" of its tokens. Those of the last label end with the
    input, or where `text_pooling` is "separator" before the separator."""
    reads_marker: bool = True
    """The special token before a label is the label's first; else that is the piece after it."""
    text_first: bool = False
    """The text stands before the labels."""
    has_segments: bool = False
    """Tokens are of segment 1 from the separator on; else all are of segment 0."""
    normalize: bool = False
    """Both vectors have length 1, and a factor of the checkpoint scales the scores."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        for name, known in (("text_pooling", TEXT_POOLINGS), ("label_pooling", LABEL_POOLINGS)):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} is {value!r}; read are {', '.join(known)}")
        for each in fields(self):
            value, kind = getattr(self, each.name), each.type
            if type(value) is not kind or (kind is int and value < (each.name == "width")):
                raise ConfigError(f"class_prompt: {each.name} is {value!r}")


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """How a model with a vector for each token reads queries and documents. Lengths are tokens, special ones included."""

    query_length: int
    """Most tokens of a query."""
    document_length: int
    """Most tokens of a document."""
    query_marker: int | None = None
    """Id of the special token before a query's text; None where there is none."""
    document_marker: int | None = None
    expansion_id: int | None = None
    """Id of the tokens that fill a query, which have vectors like the others; None where nothing fills it."""
    expansion_length: int = 0
    """Tokens up to which a query is filled."""
    attends: bool = True
    """The tokens of a query attend to those that fill it; else no token does, and these attend to the others."""
    skipped_ids: tuple[int, ...] = ()
    """Ids of pieces that have no vector in a document."""
    mean: bool = False
    """The score of a document is the mean over the query's vectors, not the sum."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        for each in fields(self):
            value = getattr(self, each.name)
            values = value if each.name == "skipped_ids" else [value]
            kind = bool if each.name in ("attends", "mean") else int
            may_be_none = each.name.endswith(("_id", "_marker"))
            if any(type(one) is not kind and not (may_be_none and one is None) for one in values):
                raise ConfigError(f"token_vectors: {each.name} is {value!r}")
        for name in ("query_length", "document_length"):
            if getattr(self, name) < 4:
                raise ConfigError(f"token_vectors: {name} ({getattr(self, name)}) must be at least 4")
        if not 0 <= self.expansion_length <= self.query_length:
            rule = f"must be from 0 to query_length ({self.query_length})"
            raise ConfigError(f"token_vectors: expansion_length ({self.expansion_length}) {rule}")
        if self.expansion_length and self.expansion_id is None:
            raise ConfigError("token_vectors: expansion_length needs an expansion_id")

    @property
    def hidden_id(self) -> int | None:
        """Return the id of the tokens that no token attends to; None where there are none."""
        return None if self.attends else self.expansion_id


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The task, its labels and the limits that decoding needs. Lengths are tokens, special ones included."""

    task: str
    labels: tuple[str, ...] = ()
    problem_type: str = "single_label"
    """Classification only: one label, any number of labels, or a number."""
    activation: str = ""
    """Classification only: way from logits to scores, "sigmoid" or "identity"; "" is what `problem_type` asks for."""
    pair: bool | None = False
    """Classification only: True where the model reads two texts; None where nothing says, so that each request decides."""
    pooling: str = "mean"
    """Similarity only: one of POOLINGS, or several whose vectors stand side by side, as "cls+mean"."""
    dense: tuple[DenseLayer, ...] = ()
    """Similarity only: layers after the pooling."""
    normalize: bool = True
    """Similarity only: an embedding has length 1."""
    similarity: str = "cosine"
    """Similarity only: comparison of two embeddings, by "cosine" or by "dot" product."""
    sparse_activation: str = "relu"
    """Sparse only: one of SPARSE_ACTIVATIONS."""
    query_weights: bool = False
    """Sparse only: weights of a query are those of its pieces in a table, and no model runs."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Similarity and sparse only: name → text that may be put before a text."""
    default_prompt_name: str = ""
    """Similarity and sparse only: the prompt of a request that names none; "" is no prompt."""
    letter_shapes: bool = False
    """NER only: the segment of a piece is the shape of its word's letters (`bert.text.letter_shapes`)."""
    viterbi: bool = False
    """NER only: the tags are the best sequence that BIO allows, not each word's best."""
    left_out: tuple[str, ...] = ()
    """NER only: kinds of words that no entity has, of IGNORED_WORDS."""
    label_prompt: LabelPrompt | None = None
    """Open NER only: how labels are read before a text."""
    class_prompt: ClassPrompt | None = None
    """Open classification only: how labels are read beside a text."""
    token_vectors: TokenVectors | None = None
    """Token vectors only: how queries and documents are read."""
    max_tokens: int = 512
    long_texts: str = "cut"
    """Classification only: training and its scores cut a text over `max_tokens` ("cut"), or read it in "windows"."""
    stride: int = 0
    """Tokens that two neighbouring windows of a long text share."""
    max_question_tokens: int = 64
    max_answer_tokens: int = 30
    n_best: int = 20
    allows_no_answer: bool = False
    null_threshold: float = 0.0
    """QA: the answer is null where (null score - best span's score) passes this; tuned on dev."""
    base: dict[str, str] = field(default_factory=dict)
    """Name, commit (of a model of the hub) and sha256 of the weights that training began with, and an adapter needs."""
    scores: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of examples (texts, sentences, questions) in each file of `scores`."""
    data: dict[str, Any] = field(default_factory=dict)
    """The `train` and `dev` files, lists of their paths and how they are read (`LabelledFile.record`)."""
    examples: tuple[dict[str, Any], ...] = ()
    """Requests to try the model with: texts, or lists of texts, by the name of the endpoint's field."""
    command: str = ""
    """Commands that made the checkpoint, a line each, in order: of earlier runs that it came from, then of its own."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that breaks a rule."""
        self._check_types()
        for name, known in _KNOWN.items():
            value = getattr(self, name)
            if value not in known and (value or name != "activation"):
                raise ConfigError(f"{name} is {value!r}; known are {', '.join(known)}")
        for name, least in _AT_LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} ({getattr(self, name)}) must be at least {least}")
        if not 0 <= self.stride < self.max_tokens - 2:
            raise ConfigError(f"stride ({self.stride}) must be at least 0 and below max_tokens - 2")
        if (self.task == "open_ner") != isinstance(self.label_prompt, LabelPrompt):
            raise ConfigError(f"label_prompt is for open_ner, which needs it; task is {self.task}")
        if (self.task == "open_classification") != isinstance(self.class_prompt, ClassPrompt):
            raise ConfigError(f"class_prompt is for open_classification, which needs it; task is {self.task}")
        if (self.task == "token_vectors") != isinstance(self.token_vectors, TokenVectors):
            raise ConfigError(
                f"token_vectors is for the task of that name, which needs it; task is {self.task}"
            )
        self._check_embedding()
        self._check_examples()
        self._check_labels()
        for text in (*self.labels, *self.prompts, *self.prompts.values()):
            if _SURROGATE.search(text):  # no file could hold it
                raise ConfigError(f"{text!r} among the labels and prompts is not valid Unicode")

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the poolings whose vectors are joined."""
        return tuple(self.pooling.split("+"))

    def vector_size(self, hidden_size: int) -> int:
        """Return how many numbers an embedding has."""
        return self.dense[-1].out_features if self.dense else hidden_size * len(self.poolings)

    def _check_embedding(self) -> None:
        if not set(self.poolings) <= set(POOLINGS):
            raise ConfigError(
                f"pooling is {self.pooling!r}; known are {', '.join(POOLINGS)}, and several joined by +"
            )
        if not all(isinstance(layer, DenseLayer) for layer in self.dense):
            raise ConfigError(f"dense ({self.dense!r}) must be a list of layers")
        for name, text in self.prompts.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise ConfigError(f"prompts must be texts by name: {name!r} is {text!r}")
        if self.default_prompt_name and self.default_prompt_name not in self.prompts:
            raise ConfigError(
                f"default_prompt_name is {self.default_prompt_name!r}; known are {', '.join(self.prompts) or 'none'}"
            )

    def _check_labels(self) -> None:
        if self.task in _WITH_LABELS and not self.labels:
            raise ConfigError(f"a {self.task} task needs labels")
        if len(set(self.labels)) != len(self.labels):
            raise ConfigError(f"labels must differ from one another: {list(self.labels)}")
        if "" in self.labels:
            raise ConfigError(f"label {self.labels.index('')} is empty; name it")
        if unknown := sorted(set(self.left_out) - set(IGNORED_WORDS)):
            raise ConfigError(f"left_out names {', '.join(unknown)}; known are {', '.join(IGNORED_WORDS)}")
        if self.task != "ner" and (self.letter_shapes or self.viterbi or self.left_out):
            raise ConfigError(f"letter_shapes, viterbi and left_out are for ner, and task is {self.task!r}")

    def _check_examples(self) -> None:
        for example in self.examples:
            if not isinstance(example, dict) or not example:
                raise ConfigError(f"examples must be a list of texts by field: {example!r}")
            for name, value in example.items():
                texts = value if isinstance(value, list) else [value]
                if not all(isinstance(text, str) and not _SURROGATE.search(text) for text in texts):
                    raise ConfigError(f"examples: {name} ({value!r}) must be a text or a list of texts")

    def _check_types(self) -> None:
        for each in fields(self):
            kind: Any = get_origin(each.type) or each.type
            value = getattr(self, each.name)
            if kind in _KINDS and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise ConfigError(f"{each.name} ({value!r}) must be {_KINDS[kind]}")
        if not isinstance(self.pair, bool | None):
            raise ConfigError(f"pair ({self.pair!r}) must be true, false or null")
        if not _is_number(self.null_threshold):
            raise ConfigError(f"null_threshold ({self.null_threshold!r}) must be a number")
        for key, value in self.base.items():
            if not isinstance(value, str):
                raise ConfigError(f"base.{key} ({value!r}) must be a text")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TaskSpec":
        """Build from the content of a `task.json`. Raises ConfigError."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"task.json holds {type(values).__name__}, not an object")
        version = values.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise ConfigError(f"task.json has schema_version {version}; this version reads {SCHEMA_VERSION}")
        values = {_FIELDS.get(key, key): value for key, value in values.items()}
        known = {f.name for f in fields(cls)}
        unknown = set(values) - known - {"schema_version"}
        if unknown or "task" not in values:
            wrong = f"unknown keys {sorted(unknown)}" if unknown else "no key 'task'"
            raise ConfigError(f"task.json has {wrong}")
        lists: dict[str, Any] = {"dense": _dense(values.get("dense", ()))}
        for name, kind in _PARTS.items():
            if (prompt := values.get(name)) is not None:
                lists[name] = _prompt(name, kind, prompt)
        for name in ("labels", "left_out"):
            texts = values.get(name, ())
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{name} must be a list of texts: {texts!r}")
            lists[name] = tuple(texts)
        lists["examples"] = values.get("examples", ())
        if not isinstance(lists["examples"], list | tuple):
            raise ConfigError(f"examples must be a list of texts by field: {lists['examples']!r}")
        lists["examples"] = tuple(lists["examples"])
        return cls(**{key: value for key, value in values.items() if key in known} | lists)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a `task.json`."""
        keys = {name: key for key, name in _FIELDS.items()}
        values = {
            keys.get(name, name): list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        return {"schema_version": SCHEMA_VERSION, **values}

    @classmethod
    def read(cls, folder: Path) -> "TaskSpec":
        """Read `task.json` of a checkpoint folder. Raises CheckpointError."""
        file = folder / "task.json"
        try:
            return cls.from_dict(read_json(file))
        except FileNotFoundError:
            raise CheckpointError(
                f"{file} is missing: it says what the checkpoint was fine-tuned for"
            ) from None
        except ConfigError as error:
            raise CheckpointError(f"{file}: {error}") from None

    def write(self, folder: Path) -> None:
        """Write `task.json` into a checkpoint folder."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        (folder / "task.json").write_text(text, encoding="utf-8")


def _dense(layers: Any) -> tuple[DenseLayer, ...]:
    """Return the layers of a list in a `task.json`. Raises ConfigError."""
    try:
        return tuple(DenseLayer(**layer) for layer in layers)
    except TypeError:
        raise ConfigError(
            f"dense must be a list of layers with out_features and activation: {layers!r}"
        ) from None


def _prompt(name: str, kind: type[Any], values: Any) -> Any:
    """Return the prompt of a `task.json`. Raises ConfigError."""
    try:
        return kind(**{key: tuple(each) if isinstance(each, list) else each for key, each in values.items()})
    except TypeError as error:
        raise ConfigError(f"{name} ({values!r}) is not complete: {error}") from None


_PARTS: dict[str, type[Any]] = {
    "label_prompt": LabelPrompt, "class_prompt": ClassPrompt, "token_vectors": TokenVectors,
}  # fmt: skip
"""Fields that are objects of their own."""


def _is_number(value: object) -> bool:
    # A tuned threshold may be infinite: the answer is then always, or never, null.
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
