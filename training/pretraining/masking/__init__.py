"""Masking: the positions to predict, and their replacements."""

from training.pretraining.masking.base import Masking
from training.pretraining.masking.ngrams import NGramMasking
from training.pretraining.masking.phrases import PhraseMasking
from training.pretraining.masking.similar_words import SimilarWordMasking
from training.pretraining.masking.spans import SpanMasking
from training.pretraining.masking.tokens import TokenMasking, WholeWordMasking

KINDS: dict[str, type[Masking]] = {
    "tokens": TokenMasking,
    "whole_words": WholeWordMasking,
    "spans": SpanMasking,
    "ngrams": NGramMasking,
    "similar_words": SimilarWordMasking,
    "phrases": PhraseMasking,
}
