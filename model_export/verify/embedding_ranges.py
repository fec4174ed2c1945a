"""Ranges of an embedding's numbers, by which a service writes them in a byte."""

import numpy as np

from bert.tasks.registry import TASKS
from bert.tasks.vectors.output_types import Ranges
from model_export.progress import step
from model_export.verify.texts import sentences
from model_export.verify.verified_graph import ExportContext, VerifiedGraph

SENTENCES = 256
"""Shipped sentences that are embedded beside the shipped texts; more widen the ranges little."""


def embedding_ranges(context: ExportContext, graph: VerifiedGraph) -> dict[str, list[float]]:
    """Return the manifest's `embedding_ranges`, measured with the graph that is served; {} for a model of another task."""
    checkpoint, exported = context.checkpoint, graph.exported
    if not TASKS[checkpoint.spec.task].embeds:
        return {}
    texts = sentences(checkpoint.tokenizer, checkpoint.spec)[:SENTENCES]
    seconds = context.costs.running([exported.precision], texts)
    with step(f"measuring the ranges of embeddings on {len(texts)} sentences", seconds):
        outputs = [*context.on_texts[exported.precision], *exported.packed(texts)]
    return Ranges.of(np.concatenate(outputs), normalize=checkpoint.spec.normalize).to_dict()
