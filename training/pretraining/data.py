"""Batches of a prepared corpus that a process computes, in an order that every process agrees on."""

import logging
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.weights import read_weights
from bert.errors import ConfigError
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.engine.distributed import Processes
from training.engine.signals import deaf_children, end_with_parent
from training.engine.state import RunState
from training.engine.train_loop import StepData
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.examples.stream import START, Cursor, ExampleStream
from training.pretraining.masking import KINDS, similar_words
from training.pretraining.masking.base import Masking
from training.pretraining.masking.phrases import read_phrases
from training.pretraining.masking.similar_words import SimilarWords
from training.pretraining.plan import Plan
from training.pretraining.pretrain_batch import PretrainBatch, collate
from training.pretraining.settings import PretrainSettings

logger = logging.getLogger(__name__)


class GlobalBatch(NamedTuple):
    """One step's data: the parts that this process computes, and where the next step's begin."""

    parts: list[PretrainBatch]
    phase: int
    cursor: Cursor


@dataclass(frozen=True)
class _Source(IterableDataset[GlobalBatch]):
    """The global batches of one phase and size from a cursor on; of several workers each makes every n-th."""

    settings: PretrainSettings
    examples: ExampleStream
    pad_id: int
    max_tokens: int
    phase: int
    batch_size: int
    cursor: Cursor
    share: slice
    """Part of each batch that this process computes."""

    def __iter__(self) -> Iterator[GlobalBatch]:
        info = get_worker_info()
        every, first = (info.num_workers, info.id) if info else (1, 0)
        cursor = self.examples.after(self.cursor, first * self.batch_size)
        for batch, after in self.examples.batches(self.batch_size, cursor, take=self.share, every=every):
            size = self.settings.microbatch_size or len(batch)
            parts = [
                collate(batch[i : i + size], self.pad_id, self.max_tokens, self.settings.packed)
                for i in range(0, len(batch), size)
            ]
            yield GlobalBatch(parts, self.phase, after)


class Batches:
    """Source of each step's batch, made in this process or by workers that run ahead."""

    def __init__(
        self, settings: PretrainSettings, corpus: Corpus, mask: Masking, processes: Processes
    ) -> None:
        """Keep settings and corpus; nothing is read before the first batch."""
        self.settings, self.corpus, self.mask, self.processes = settings, corpus, mask, processes
        self.plan = Plan(settings, processes.world)
        self._stream: tuple[int, ExampleStream] | None = None
        self._running: tuple[int, int] | None = None
        self._copies: torch.cuda.Stream | None = None
        self._iterator: Iterator[GlobalBatch] = iter(())

    def next(self, state: RunState) -> StepData:
        """Return the data of the step that follows `state`."""
        plan = self.plan
        done = plan.done(state.step, state.seconds)
        phase, size = plan.phase(done), plan.batch_size(done)
        if self._running != (phase, size):
            # Examples of another length are another stream; one of the same phase goes on where it is.
            there = state.position if phase == state.position.get("phase", 0) else {}
            cursor = Cursor(**there["cursor"]) if "cursor" in there else START
            self.close()
            self._iterator = self._start(phase, size, cursor, plan.phases[phase].max_tokens)
            self._running = (phase, size)
        batch = next(self._iterator)
        parts = self._sent(batch.parts)
        position = {"phase": batch.phase, "cursor": asdict(batch.cursor)}
        return StepData(parts, sum(p.tokens for p in parts), sum(p.examples for p in parts), position)

    def _sent(self, parts: list[PretrainBatch]) -> list[PretrainBatch]:
        """Return parts on the device. A GPU fetches them while it computes the step before."""
        device = self.processes.device
        if device.type != "cuda":
            return [part.to(device) for part in parts]
        if self._copies is None:
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._copies):
            there = [part.pin_memory().to(device) for part in parts]
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(self._copies)
        for part in there:
            part.record_stream(computing)
        return there

    def close(self) -> None:
        """End the workers, if there are any.

        Deaf to SIGTERM, they would otherwise outlast the end of this process, which waits for them.
        """
        if shut_down := getattr(self._iterator, "_shutdown_workers", None):  # torch has no public name for it
            shut_down()
        self._iterator, self._running = iter(()), None

    def _start(self, phase: int, batch_size: int, cursor: Cursor, max_tokens: int) -> Iterator[GlobalBatch]:
        settings = self.settings
        if self._stream is None or self._stream[0] != phase:
            # Kept while only the size of the batch grows: the shard that it is in need not be planned again.
            self._stream = phase, stream(settings, self.corpus, self.mask, max_tokens, settings.seed + phase)
        source = _Source(
            settings=settings,
            examples=self._stream[1],
            pad_id=self.mask.special.pad,
            max_tokens=max_tokens,
            phase=phase,
            batch_size=batch_size,
            cursor=cursor,
            share=slice(self.processes.rank, None, self.processes.world),
        )
        if not settings.data_workers:
            return iter(source)
        loader = DataLoader(
            source,
            batch_size=None,
            num_workers=settings.data_workers,
            prefetch_factor=4,
            pin_memory=self.processes.device.type == "cuda",
            multiprocessing_context="forkserver",
            worker_init_fn=_begin_worker,
        )
        # The main process still takes a step after it was asked to stop, and needs its batch.
        with deaf_children(signal.SIGTERM, signal.SIGINT):
            return iter(loader)


def _begin_worker(number: int) -> None:
    end_with_parent()


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
    chosen, of_kind = settings.masking, dict[str, Any]()
    if chosen.span_shares:
        of_kind["shares"] = tuple(chosen.span_shares)
    if chosen.smoothing:
        of_kind["weights"] = _weights(settings, corpus, special)
    if chosen.phrases is not None:
        of_kind["phrases"] = read_phrases(chosen.phrases, Tokenizer.load(corpus.folder))
    if chosen.kind == "similar_words":
        of_kind["similar"] = _similar(settings, corpus, special)
    shares = chosen.model_dump(include={"rate", "max_predictions", "mask_share", "random_share"})
    return KINDS[chosen.kind](special, **shares, **of_kind)


def _weights(settings: PretrainSettings, corpus: Corpus, special: SpecialIds) -> NDArray[np.float64]:
    """Return each piece's weight in the draw of masked tokens (V,), by its count in the training text; special ones 0."""
    weights: NDArray[np.float64] = np.maximum(corpus.token_counts("train"), 1) ** -settings.masking.smoothing
    never = (special.cls, special.sep, special.pad, special.mask, special.unk)
    weights[[number for number in never if number is not None]] = 0.0
    return weights


def _similar(settings: PretrainSettings, corpus: Corpus, special: SpecialIds) -> SimilarWords:
    vectors = settings.masking.vectors
    if vectors is not None and vectors.suffix != ".npy":
        return similar_words.of_words(vectors, Tokenizer.load(corpus.folder), special)
    if vectors is not None:
        return similar_words.of_pieces(corpus, vectors, special)
    if settings.base is None:
        raise ConfigError(
            "masking kind 'similar_words' needs vectors to find them by: masking.vectors, or a base to take them from"
        )
    weights = read_weights(resolve_base(settings.base))
    return similar_words.of_pieces(corpus, weights["bert.embeddings.word_embeddings.weight"], special)
