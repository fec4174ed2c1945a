"""Examples: the token sequences that a model is pretrained on."""

from training.pretraining.examples.base import SpecialIds
from training.pretraining.examples.builder import Builder
from training.pretraining.examples.pairs import NextSentence, SentenceOrder
from training.pretraining.examples.sentences import FullSentences, SingleSegments

BUILDERS: dict[str, type[Builder]] = {
    "pairs": NextSentence,
    "sentence_order": SentenceOrder,
    "full_sentences": FullSentences,
    "single": SingleSegments,
}


def builder(kind: str, max_tokens: int, special: SpecialIds, short_share: float = 0.1) -> Builder:
    """Return the builder of a name in BUILDERS; raises ConfigError for lengths that leave no room for text."""
    return BUILDERS[kind](max_tokens, special, short_share)
