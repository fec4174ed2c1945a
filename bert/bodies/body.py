"""The interface of a body: its config words, tensor shapes and properties, without its layers.

The layers are in `bert.nn` (torch), `model_export.graph` (the exported graph) and `model_export.numpy_bodies` (numpy), each
in a file or folder of the body's name, with a table that leads there from the class of the body. Names of tensors are those
of BERT's files.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from bert.bodies.sizes import Sizes
from bert.errors import ConfigError

Shape = tuple[str, tuple[int, ...]]
"""A tensor's name and shape."""

EMBEDDING = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
WIDENING = "bert.embeddings.embed_proj.weight"
"""Matrix that makes narrow embeddings as wide as the layers before their norm."""
EMBEDDINGS_NORM = "bert.embeddings.LayerNorm"
MLM_HEAD = "cls.predictions"


def layer_shapes(name: str, shape: tuple[int, ...], *, bias: bool = True) -> Iterator[Shape]:
    """Yield the tensors of a linear layer (out, in), as torch has it, or of a norm (width,)."""
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


@dataclass(frozen=True, slots=True)
class Body(ABC):
    """A body; its fields hold what its own keys of `config.json` say. Defaults here are BERT's."""

    projects_before_norm: ClassVar[bool] = False
    """Narrow embeddings are widened, without a bias, before their norm and not after it."""
    reads_segments: ClassVar[bool] = True
    """Both texts of a pair have vectors of their own, or a table of zeros in their place."""
    has_one_head: ClassVar[bool] = False
    """All scores, of texts, tokens and pieces, come from the same layers `head`; there is no pooler."""

    @classmethod
    def of(cls, body: "Body") -> Self:
        """Return a config's body as one of this class, which its caller knows it to be."""
        assert isinstance(body, cls), f"{type(body).__name__} is not a {cls.__name__}"
        return body

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the names of the words of `config.json` that `read` reads, and that a new model may be given."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read the words in the content of a `config.json`. Raises UnsupportedModelError or ConfigError."""
        return cls(**{name: values[name] for name in cls.words() if name in values})

    def written(self) -> dict[str, Any]:
        """Return the words as `read` reads them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self, sizes: Sizes) -> None:  # noqa: B027 - most bodies have nothing to check
        """Raise ConfigError for a value that breaks a rule, or does not fit the sizes."""

    @abstractmethod
    def shapes(self, sizes: Sizes, *, projects: bool) -> Iterator[Shape]:
        """Yield the tensors of embeddings and layers, and of a linear layer between them where embeddings are projected."""

    @abstractmethod
    def pooler_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors between the layers and a classifier of texts."""

    def scorer_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors between the layers and a linear layer that scores each token."""
        return iter(())

    @abstractmethod
    def vocabulary_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of the masked language model's head; its decoder is the word embedding."""

    @property
    def has_positions(self) -> bool:
        """Tell whether embeddings have a table of positions."""
        return True

    @property
    def has_biases(self) -> bool:
        """Tell whether the layers of attention, and those back to the width of the residual, have biases."""
        return True

    @property
    def has_score_terms(self) -> bool:
        """Tell whether attention's scores have terms other than products of queries and keys."""
        return False

    @property
    def has_vocabulary_bias(self) -> bool:
        """Tell whether each piece's score has a bias."""
        return True

    @property
    def text_pooling(self) -> str:
        """Pooling that makes the vector of a text that a classifier reads."""
        return "cls"

    @property
    def head_act(self) -> str:
        """Activation of the masked language model's head; "" is that of the family."""
        return ""

    @property
    def window(self) -> float:
        """Largest distance of two tokens that see each other in the layers that see a window."""
        return math.inf

    def shortened(self, layers: int, *, keeps_width: bool) -> Self:
        """Return the body of a model of so many layers, which are as wide as the embeddings or not."""
        return self

    def stretched(self, model_type: str, asked: Mapping[str, Any]) -> Self:
        """Return the body of a model that goes on with longer texts, by settings under its words.

        Raises ConfigError where positions are weights, or for words that it has not.
        """
        names = ", ".join(f"model.{name}" for name in asked)
        raise ConfigError(f"a base of the family {model_type!r} has a shape of its own: leave out {names}")
