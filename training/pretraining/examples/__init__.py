"""Examples: the token sequences that a model is pretrained on."""

from training.pretraining.examples.pairs import NextSentence, SentenceOrder
from training.pretraining.examples.sentences import Chunks, FullSentences, Segments, SingleSegments
from training.pretraining.examples.text import Builder

BUILDERS: dict[str, type[Builder]] = {
    "pairs": NextSentence,
    "sentence_order": SentenceOrder,
    "full_sentences": FullSentences,
    "chunks": Chunks,
    "single": SingleSegments,
    "segments": Segments,
}
