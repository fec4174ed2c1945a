"""Check of a baseline's answers against the checkpoint itself, computed in float32 by plain numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert.checkpoint.weights import Checkpoint
from bert.encoding import Encoding
from bert.tasks import classification, qa, spans
from model_export.reference import Reference


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer: a label, or the words of a document (None: it has no answer)."""

    label: str | None
    score: float | None
    """None where it means something else than the reference's; then the label is a document's best span."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Answer of the reference."""

    label: str | None
    score: float
    span: str | None = None
    """Best span of a document, also where no answer wins over it."""


@dataclass(frozen=True, slots=True)
class BaselineTolerance:
    """Largest allowed distance of a baseline from the reference."""

    score: float = 1e-3
    labels: float = 0.0
    """Share of the labels that may differ."""


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of a baseline's answers with the reference's."""

    answers: int
    wrong_labels: int
    largest_difference: float
    """Largest difference of a score, over all answers that have the reference's label; 0 where scores do not compare."""

    def passes(self, tolerance: BaselineTolerance) -> bool:
        """Tell whether the baseline computes the same thing."""
        few_wrong = self.wrong_labels <= tolerance.labels * self.answers
        return few_wrong and self.largest_difference <= tolerance.score


def check(given: Sequence[Prediction], expected: Sequence[Expected]) -> Check:
    """Compare answers; raises ValueError if one is missing."""
    pairs = list(zip(given, expected, strict=True))
    same = [(answer, right) for answer, right in pairs if _same_label(answer, right)]
    differences = [abs(answer.score - right.score) for answer, right in same if answer.score is not None]
    return Check(len(pairs), len(pairs) - len(same), max(differences, default=0.0))


def _same_label(answer: Prediction, right: Expected) -> bool:
    return answer.label == (right.span if answer.score is None else right.label)


def expected_labels(checkpoint: Checkpoint, texts: Sequence[str]) -> list[Expected]:
    """Classify texts, each alone, cut at the model's length."""
    tokenizer, spec = checkpoint.tokenizer, checkpoint.spec
    reference = _reference(checkpoint)
    encoded = [tokenizer.single(p, spec.max_tokens, truncate=True) for p in tokenizer.pieces(texts)]
    logits = np.concatenate([_outputs(reference, encoding, np.zeros(1, np.intp)) for encoding in encoded])
    return [Expected(found.label, found.score) for found in classification.decode(logits, spec)]


def expected_spans(checkpoint: Checkpoint, documents: Sequence[tuple[str, str]]) -> list[Expected]:
    """Answer questions, (question, context) each, a window at a time."""
    return [_answered(checkpoint, _reference(checkpoint), *document) for document in documents]


def _answered(checkpoint: Checkpoint, reference: Reference, question: str, context: str) -> Expected:
    asked, read = checkpoint.tokenizer.pieces([question, context])
    windows = qa.encode(checkpoint.tokenizer, asked, read, checkpoint.spec)
    logits = [_outputs(reference, w.encoding, np.arange(len(w.encoding))) for w in windows]
    found = spans.decode(context, windows, logits, checkpoint.spec)
    return Expected(found.answer, found.score, found.best.text if found.best else None)


def _reference(checkpoint: Checkpoint) -> Reference:
    return Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)


def _outputs(reference: Reference, encoding: Encoding, positions: np.ndarray) -> np.ndarray:
    return reference.outputs(encoding.ids, encoding.segment_ids, positions)
