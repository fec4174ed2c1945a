"""Masking: the positions to predict, and their replacements."""

from training.pretraining.masking.base import Masking
from training.pretraining.masking.phrases import PhraseMasking
from training.pretraining.masking.similar_words import SimilarWordMasking
from training.pretraining.masking.words import NGramMasking, SpanMasking, TokenMasking, WholeWordMasking

KINDS: dict[str, type[Masking]] = {
    "tokens": TokenMasking,
    "whole_words": WholeWordMasking,
    "spans": SpanMasking,
    "ngrams": NGramMasking,
    "similar_words": SimilarWordMasking,
    "phrases": PhraseMasking,
}
