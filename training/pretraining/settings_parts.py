"""The parts of a pretraining run's settings that have names of their own."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from training.command_line import SettingsPart
from training.removed_settings import drop_removed


class MaskingSettings(SettingsPart):
    """Which tokens are to be predicted, and what stands in their place."""

    kind: Literal["tokens", "whole_words", "spans", "similar_words", "phrases"] = "tokens"
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens."""
    max_predictions: Annotated[int, Field(ge=0)] = 0
    """Most tokens of one example; 0 sets no bound (the paper: 20 at 128 tokens, 77 at 512)."""
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Of those, how many become [MASK]."""
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """And how many a random piece; the rest stay."""
    static_dupes: Annotated[int, Field(ge=0)] = 0
    """Copies of the corpus that are masked once (the paper's dupe_factor, 5 to 10); 0 masks afresh at each draw."""
    span_shares: list[float] = Field(default_factory=list)
    """spans: how often 1, 2, … words are masked together (ALBERT: 6/11, 3/11, 2/11); none is SpanBERT's, 1 to 10 words."""
    phrases: Path | None = None
    """phrases: text file with a phrase a line."""
    vectors: Path | None = None
    """similar_words: .npy of a vector a piece (V, D), to find similar words; None takes the base's embeddings."""


class ModelSettings(SettingsPart):
    """Shape of a new model; what is not given is BERT base's."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: Annotated[int, Field(ge=1)] | None = None
    """None is four times the hidden size."""
    hidden_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    attention_probs_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_position_embeddings: int = 512
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of fresh weights. The paper's suits its width; narrow models learn sooner from more."""
    vocab_multiple: Annotated[int, Field(ge=1)] = 1
    """The embedding table is filled up to a multiple of this; 64 is faster on GPUs."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, given: Any) -> Any:
        return drop_removed(given, "embeddings", "random", "word embeddings start from random numbers")


class DistillationSettings(SettingsPart):
    """A small model learns what a large one says (Sanh et al. 2019, arXiv 1910.01108)."""

    teacher: Path
    """Checkpoint folder with an MLM head and the same vocabulary."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    soft_weight: Annotated[float, Field(ge=0)] = 5.0
    hard_weight: Annotated[float, Field(ge=0)] = 2.0
    cosine_weight: Annotated[float, Field(ge=0)] = 1.0
    start_from_teacher: bool = False
    """Copy the teacher's embeddings, head, and layers spread over its depth; the two must be equally wide."""


class ReplacedTokenSettings(SettingsPart):
    """A small generator fills the masks, and the model tells what it replaced (Clark et al. 2020, arXiv 2003.10555)."""

    generator_width: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the model's width."""
    discriminator_weight: Annotated[float, Field(gt=0)] = 50.0


class Phase(SettingsPart):
    """A part of the run with examples of one length."""

    max_tokens: Annotated[int, Field(ge=16)]
    share: Annotated[float, Field(gt=0, le=1)]
    """Of the run's steps; shares add up to 1."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """None takes the run's."""
