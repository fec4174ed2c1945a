"""Masking: the positions to predict, and their replacements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.errors import ConfigError
from training.pretraining.examples.base import SpecialIds
from training.pretraining.masking.base import Masking
from training.pretraining.masking.ngrams import NGramMasking
from training.pretraining.masking.phrases import PhraseList, PhraseMasking
from training.pretraining.masking.similar_words import SimilarWordMasking, SimilarWords
from training.pretraining.masking.spans import SpanMasking
from training.pretraining.masking.tokens import TokenMasking, WholeWordMasking

KINDS = ("tokens", "whole_words", "spans", "ngrams", "similar_words", "phrases")


def strategy(
    kind: str,
    special: SpecialIds,
    rate: float = 0.15,
    max_predictions: int = 0,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    *,
    phrases: PhraseList | None = None,
    similar: SimilarWords | None = None,
    span_shares: Sequence[float] = (),
    weights: NDArray[np.float64] | None = None,
) -> Masking:
    """Return the masking of a name in KINDS; raises ConfigError for shares out of range or what a kind lacks.

    "phrases" needs `phrases` (`phrases.read_phrases`), "similar_words" needs `similar` (`word_neighbours`); `weights` (V,)
    of pieces are for "tokens".
    """
    shared = (special, rate, max_predictions, mask_share, random_share)
    match kind:
        case "tokens":
            return TokenMasking(*shared, weights)
        case "whole_words":
            return WholeWordMasking(*shared)
        case "spans":
            return SpanMasking(*shared, tuple(span_shares))
        case "ngrams":
            return NGramMasking(*shared, tuple(span_shares))
        case "similar_words" if similar is not None:
            return SimilarWordMasking(*shared, tuple(span_shares), similar)
        case "phrases" if phrases is not None:
            return PhraseMasking(*shared, phrases)
    raise ConfigError(f"masking kind {kind!r} must be one of {', '.join(KINDS)}, with what it needs")
