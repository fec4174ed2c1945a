"""Hard negatives of pairs: what `bert-mine` does. P pairs, C candidates, E width."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.weights import read_checkpoint
from bert.data.examples import TextExample
from bert.data.files import read_lines
from bert.errors import ConfigError
from bert.files import atomic_write
from bert.tasks.vectors.similarity import normalize
from training.engine.checkpoints import require_writable
from training.engine.distributed import Processes, pick_device
from training.finetuning.model import of_checkpoint
from training.finetuning.scores import predictor
from training.labelled.sources import read_sources
from training.mining.settings import MineSettings
from training.settings import FinetuneSettings

logger = logging.getLogger(__name__)
Floats = NDArray[np.floating]
AT_ONCE = 2**26
"""Cosines of anchors with candidates that are in memory at once: 256 MiB."""


def mine(settings: MineSettings) -> int:
    """Write the pairs with their negatives; return how many pairs have some.

    A candidate is a positive of another pair, a negative that the file has, or a text of the pool. What equals the
    anchor or one of its positives is never a negative, nor is what is nearer than `margin` allows: most of that is right as
    well (NV-Retriever, arXiv 2407.15831, section 3.2).

    Raises CheckpointError, ConfigError or DataError for what cannot be read or written.
    """
    require_writable(settings.output.parent, "the folder of output")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    checkpoint = read_checkpoint(resolve_base(settings.model))
    if checkpoint.spec.task != "similarity":
        raise ConfigError(
            f"model ({settings.model}) is for {checkpoint.spec.task}, and negatives need similarity"
        )
    read = FinetuneSettings(task="similarity", output_dir=settings.output.parent)
    pairs: list[TextExample] = [each for file in read_sources(settings.pairs, read) for each in file.examples]
    if not pairs or any(each.label is not None for each in pairs):
        raise ConfigError(
            "pairs need texts that belong together, without scores: columns `anchor` and `positive`"
        )
    pool = read_lines(settings.pool) if settings.pool else []
    others = [text for each in pairs for text in ((each.text_pair or ""), *(each.negatives or ()))]
    candidates = list(dict.fromkeys(text for text in [*others, *pool] if text.strip()))
    model, task = of_checkpoint(checkpoint)
    processes = Processes(0, 1, pick_device(settings.device))
    predict = predictor(model.to(processes.device), task, processes)
    anchors = list(dict.fromkeys(each.text for each in pairs))
    texts = list(dict.fromkeys([*candidates, *anchors]))
    logger.info("%s reads %d texts", settings.model, len(texts))
    limit = checkpoint.spec.max_tokens
    encoded = [task.tokenizer.single(each, limit, truncate=True) for each in task.tokenizer.pieces(texts)]
    vectors = dict(zip(texts, normalize(np.stack(predict(encoded))), strict=True))
    lines, count = [], 0
    for pair, negatives in zip(pairs, _negatives(pairs, candidates, vectors, settings), strict=True):
        count += bool(negatives)
        row = {"anchor": pair.text, "positive": pair.text_pair, "negatives": negatives}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    atomic_write(settings.output, "".join(lines))
    logger.info("%s: %d of %d pairs have negatives", settings.output, count, len(pairs))
    return count


def _negatives(
    pairs: Sequence[TextExample],
    candidates: Sequence[str],
    vectors: dict[str, Floats],
    settings: MineSettings,
) -> Iterator[list[str]]:
    """Yield the negatives of each pair, the nearest first."""
    table = np.stack([vectors[text] for text in candidates])  # (C, E)
    place = {text: number for number, text in enumerate(candidates)}
    right = defaultdict[str, set[int]](set)
    for each in pairs:
        right[each.text] |= {place[text] for text in (each.text, each.text_pair or "") if text in place}
    rows = max(1, AT_ONCE // len(candidates))
    for start in range(0, len(pairs), rows):
        part = pairs[start : start + rows]
        cosines = np.stack([vectors[each.text] for each in part]) @ table.T  # (P, C)
        for each, row in zip(part, cosines, strict=True):
            own = row[place[each.text_pair or ""]]
            bound = own - settings.margin * abs(own)  # further away, also where it is below 0
            row[list(right[each.text])] = -np.inf
            wanted = min(len(row), settings.skip + settings.negatives)
            # What is too near is no candidate, and so is not among those that `skip` passes over.
            row[row > bound] = -np.inf
            nearest = np.argpartition(-row, wanted - 1)[:wanted]
            nearest = nearest[np.argsort(-row[nearest], kind="stable")][settings.skip :]
            yield [candidates[number] for number in nearest if row[number] > -np.inf]
