"""Streams of examples from the settings: builder, masking, phrases and similar words."""

import logging
from pathlib import Path

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.weights import read_weights
from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import Ints, MaskedExample, SpecialIds
from training.pretraining.examples.stream import ExampleStream
from training.pretraining.masking import strategy
from training.pretraining.masking.base import Masking
from training.pretraining.masking.ngrams import similar_pieces
from training.pretraining.masking.phrases import read_phrases
from training.pretraining.settings import PretrainSettings

logger = logging.getLogger(__name__)


def stream(
    settings: PretrainSettings, corpus: Corpus, mask: Masking, max_tokens: int, seed: int
) -> ExampleStream:
    """Return the training examples of one length."""
    build = BUILDERS[settings.examples](max_tokens, mask.special, settings.short_share)
    return ExampleStream(corpus, "train", build, mask, seed, settings.masking.static_dupes)


def held_out_examples(settings: PretrainSettings, corpus: Corpus, mask: Masking) -> list[MaskedExample]:
    """Return held-out examples with plain masking, so that the scores of all recipes compare.

    With too little text for pairs they are single sequences, and a warning says so.
    """
    documents = sum(entry["documents"] for entry in corpus.info["splits"]["held_out"]["shards"])
    if not settings.eval_examples or not documents:
        return []
    if documents < BUILDERS[settings.examples].min_documents:
        logger.warning(
            "%s has 1 held-out document, and pairs take two: held-out scores leave the pairs out; "
            "bert-prepare with a larger held_out gives them",
            corpus.folder,
        )
        settings = settings.model_copy(update={"examples": "full_sentences"})
    return stream(settings, corpus, mask, settings.longest, settings.seed).held_out_examples(
        settings.eval_examples
    )


def masking(settings: PretrainSettings, corpus: Corpus, special: SpecialIds) -> Masking:
    """Return the masking of the settings. Make it once: similar words take a while to find."""
    chosen, folder = settings.masking, corpus.tokenizer_folder
    return strategy(
        chosen.kind,
        special,
        chosen.rate,
        chosen.max_predictions,
        chosen.mask_share,
        chosen.random_share,
        phrases=read_phrases(chosen.phrases, Tokenizer.load(folder)) if chosen.phrases else None,
        similar=_similar(settings, folder) if chosen.kind == "similar_words" else None,
        span_shares=chosen.span_shares,
    )


def _similar(settings: PretrainSettings, tokenizer: Path) -> Ints:
    if settings.masking.vectors is not None:
        return similar_pieces(tokenizer, settings.masking.vectors)
    if settings.base is None:
        raise ConfigError(
            "masking kind 'similar_words' needs vectors to find them by: masking.vectors, or a base to take them from"
        )
    weights = read_weights(resolve_base(settings.base))
    return similar_pieces(tokenizer, weights["bert.embeddings.word_embeddings.weight"])
