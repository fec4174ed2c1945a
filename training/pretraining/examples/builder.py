"""Base of the builders of examples."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bert.errors import ConfigError, DataError
from training.corpus.shards import Document
from training.pretraining.examples.base import SpecialIds
from training.pretraining.examples.text import ExampleRanges, Examples, Text


@dataclass(frozen=True)
class Builder(ABC):
    """Documents to examples of at most `max_tokens` tokens, [CLS] and [SEP] among them."""

    max_tokens: int
    special: SpecialIds
    short_share: float = 0.1
    """Share of documents whose examples have a random shorter length, in builders that have such."""

    min_documents: ClassVar[int] = 0
    """Least number of documents with text."""
    pairs: ClassVar[bool] = False
    """True for examples of two segments with a label."""

    def __post_init__(self) -> None:
        if self.max_tokens < self.special_tokens + 2:
            raise ConfigError(
                f"max_tokens ({self.max_tokens}) must be at least {self.special_tokens + 2}: "
                f"{self.special_tokens} special tokens and two of text"
            )
        if not 0 <= self.short_share <= 1:
            raise ConfigError(f"short_share ({self.short_share:g}) must be between 0 and 1")

    @property
    def special_tokens(self) -> int:
        """[CLS], and a [SEP] for each segment."""
        return 3 if self.pairs else 2

    def __call__(self, documents: Sequence[Document], rng: np.random.Generator) -> Examples:
        """Plan the examples of some documents; raises DataError for fewer than `min_documents` with text."""
        return self.plan(Text.of(documents), rng)

    def plan(self, text: Text, rng: np.random.Generator) -> Examples:
        """Plan the examples of a text; raises DataError for fewer than `min_documents`."""
        if text.document_count < self.min_documents:
            raise DataError(
                "the corpus",
                None,
                f"has {text.document_count} documents with text, and {type(self).__name__} needs "
                f"{self.min_documents}: a random second segment comes from another document",
            )
        return Examples(text, self.special, self._plan(text, rng), segments=self.pairs)

    @abstractmethod
    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        """Return the token ranges of each example."""
