"""Fine-tuning for named entities: a BIO label at the first piece of each word."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from bert.config import BertConfig
from bert.data.examples import WordsExample
from bert.metrics.entities import bio_spans, entity_f1
from bert.nn import losses
from bert.nn.heads import BertForTokenClassification, BertHead
from bert.nn.losses import IGNORED, Loss
from bert.tasks.ner import head_positions, tags_of, word_heads, word_targets
from bert.text.offsets import join_words
from bert.tokenizer import Pieces, Window
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import Baseline, Findings, Mistake, excerpt, worst
from training.tasks.base import (
    Evaluation,
    Feature,
    FeatureBatch,
    FinetuneTask,
    Predict,
    padded,
    token_counts,
)


class NerFinetuning(FinetuneTask):
    """Named entities. Words are the tokenizer's own, as in the service; a long sentence is read in windows."""

    architecture = "BertForTokenClassification"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the scores that may decide, the default first."""
        kinds = dict.fromkeys(label[2:] for label in self.spec.labels if label != "O")
        return ("f1", "precision", "recall", *(f"f1_{kind}" for kind in kinds))

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with one output a label at each token."""
        return BertForTokenClassification(config, len(self.spec.labels))

    def _windows(self, examples: Sequence[WordsExample]) -> list[tuple[Pieces, list[Window]]]:
        pieces = self.tokenizer.pieces([join_words(example.words) for example in examples])
        return [(p, self.tokenizer.windows(p, self.spec.max_tokens, self.spec.stride)) for p in pieces]

    def features(self, examples: Sequence[WordsExample]) -> list[Feature]:
        """Make a feature of each window; a sentence without any piece is left out."""
        features = []
        for example, (pieces, windows) in zip(examples, self._windows(examples), strict=True):
            targets = np.full(len(pieces), IGNORED, np.int64)
            targets[word_heads(pieces)] = word_targets(
                example.words, example.labels, pieces, self.spec.labels
            )
            for window in windows:
                if window.stop > window.start:
                    row = np.full(len(window.encoding), IGNORED, np.int64)
                    row[1:-1] = targets[window.start : window.stop]
                    features.append(Feature((window.encoding,), row))
        return features

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compute the cross entropy at the first piece of each word."""
        targets = padded(batch.targets, batch.input_ids.shape[1], IGNORED)
        count = int((targets != IGNORED).sum())  # on the host: asking a GPU would stall it
        return losses.cross_entropy(logits, send(targets, logits.device), count=count)

    def soft_loss(self, logits: Tensor, batch: FeatureBatch, temperature: float) -> Loss:
        """Compare with the teacher at the first piece of each word."""
        labelled = self._labelled(batch)
        soft = padded(batch.soft, batch.input_ids.shape[1]).flatten(0, 1)[labelled]
        ours = logits.flatten(0, 1).index_select(0, send(labelled, logits.device))
        return losses.soft_targets(ours, send(soft, logits.device), temperature)

    def disagreement(self, logits: Tensor, again: Tensor, batch: FeatureBatch) -> Tensor:
        """Compare two readings at the first piece of each word."""
        labelled = send(self._labelled(batch), logits.device)
        first, second = (each.flatten(0, 1).index_select(0, labelled) for each in (logits, again))
        return losses.symmetric_kl(first, second)

    def _labelled(self, batch: FeatureBatch) -> Tensor:
        """Return the places of targets among the B * T of a batch, on the host: asking a GPU would stall it."""
        targets = padded(batch.targets, batch.input_ids.shape[1], IGNORED)
        return (targets != IGNORED).flatten().nonzero()[:, 0]

    def evaluate(self, predict: Predict, examples: Sequence[WordsExample]) -> Evaluation:
        """Score entity F1 over the words of the data: exact span and type."""
        encoded = self._windows(examples)
        logits = iter(predict([window.encoding for _, windows in encoded for window in windows]))
        tags = []
        for example, (pieces, windows) in zip(examples, encoded, strict=True):
            parts = [next(logits)[head_positions(window.encoding)] for window in windows]
            tags.append(tags_of(example.words, pieces, windows, parts, self.spec))
        found = entity_f1([list(example.labels) for example in examples], tags)
        scores = {"f1": found.f1, "precision": found.precision, "recall": found.recall}
        scores |= {f"f1_{name}": of_type.f1 for name, of_type in found.types.items()}
        return Evaluation(scores, entity_findings(examples, tags))

    def baseline(self, examples: Sequence[WordsExample]) -> Baseline:
        """Score the prediction of no entity."""
        return Baseline("no entity anywhere", {"f1": 0.0, "precision": 0.0, "recall": 0.0})

    def lengths(self, examples: Sequence[WordsExample]) -> Lengths:
        """Count sentences, which are read in windows."""
        tokens = token_counts(self.tokenizer, [join_words(example.words) for example in examples])
        return Lengths(
            tokens + self.tokenizer.form.special_tokens(1),
            self.spec.max_tokens,
            unit="sentences",
            in_windows=True,
        )


def entity_findings(examples: Sequence[WordsExample], predictions: Sequence[Sequence[str]]) -> Findings:
    """Analyse BIO labels: scores of each type, kinds of mistake, and the sentences with most wrong entities."""
    types = entity_f1([e.labels for e in examples], predictions).types
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        gold, given = set(bio_spans(example.labels)), set(bio_spans(predicted))
        if gold != given:
            counts.update(_entity_mistakes(gold, given))
            text = excerpt(" ".join(example.words))
            mistake = Mistake(example.id, text, _entities(example, gold), _entities(example, given))
            wrong.append((len(gold ^ given), mistake))
    predicted_types = {kind for labels in predictions for kind, _, _ in bio_spans(labels)}
    return Findings(
        len(examples),
        len(wrong),
        worst(wrong),
        {
            name: {"precision": t.precision, "recall": t.recall, "f1": t.f1, "support": t.support}
            for name, t in types.items()
        },
        dict(counts),
        never_predicted=tuple(name for name, t in types.items() if t.support and name not in predicted_types),
    )


def _entity_mistakes(gold: set[tuple[str, int, int]], given: set[tuple[str, int, int]]) -> Counter[str]:
    """Count mistakes by kind; an entity that overlaps no other is missed or invented."""
    kinds = Counter[str]()
    for kind, first, last in given - gold:
        touched = [other for other in gold if other[1] < last and first < other[2]]
        if (first, last) in [(other[1], other[2]) for other in touched]:
            kinds["wrong type"] += 1
        elif any(other[0] == kind for other in touched):
            kinds["wrong ends"] += 1
        else:
            kinds["wrong type and ends" if touched else "invented"] += 1
    for _, first, last in gold - given:
        kinds["missed"] += not any(other[1] < last and first < other[2] for other in given)
    return kinds


def _entities(example: WordsExample, spans: set[tuple[str, int, int]]) -> str:
    ordered = sorted(spans, key=lambda span: span[1])
    return ", ".join(f"{kind}[{' '.join(example.words[a:b])}]" for kind, a, b in ordered) or "(none)"
