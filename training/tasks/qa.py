"""Fine-tuning for reading comprehension, with and without "no answer"."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert.config import BertConfig
from bert.data.examples import QaExample
from bert.metrics.squad import best_null_threshold, squad_em_f1, squad_scores
from bert.nn import losses
from bert.nn.heads import BertForQuestionAnswering, BertHead
from bert.nn.losses import Loss
from bert.tasks import qa
from bert.tasks.spans import Answer, decode
from bert.tokenizer import Window
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import EXCERPT, MISTAKES_SHOWN, Baseline, Findings, Mistake, excerpt
from training.tasks.base import (
    Evaluation,
    Feature,
    FeatureBatch,
    FinetuneTask,
    Predict,
    padded,
    token_counts,
)

_BARRED = -1e9
"""Finite stand-in for minus infinity, as a temperature divides it."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The best non-null answers to some questions, and the margin of the null answer over each."""

    examples: Sequence[QaExample]
    texts: list[str]
    margins: list[float]

    @property
    def golds(self) -> list[list[str]]:
        """Gold answers of each question; empty for an unanswerable one."""
        return [[text for text, _ in example.answers] for example in self.examples]


class QaFinetuning(FinetuneTask):
    """Spans in a paragraph; a window without the answer points to [CLS]."""

    architecture = "BertForQuestionAnswering"
    metrics = ("f1", "exact_match", "has_answer_f1", "no_answer_f1", "f1_served", "best_f1")

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with start and end scores."""
        return BertForQuestionAnswering(config)

    def windows(self, examples: Sequence[QaExample]) -> list[list[Window]]:
        """Encode the windows of each example."""
        questions = self.tokenizer.pieces([example.question for example in examples])
        contexts = self.tokenizer.pieces([example.context for example in examples])
        return [qa.encode(self.tokenizer, q, c, self.spec) for q, c in zip(questions, contexts, strict=True)]

    def features(self, examples: Sequence[QaExample]) -> list[Feature]:
        """Make a feature of each window; of several annotators' answers each epoch learns another."""
        features = []
        for example, windows in zip(examples, self.windows(examples), strict=True):
            for window in windows:
                targets = [
                    qa.span_target(window.encoding, start, start + len(text))
                    for text, start in example.answers
                ]
                first, *others = targets or [(0, 0)]
                features.append(Feature((window.encoding,), first, others=tuple(others)))
        return features

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compute the loss of spans, which start and end in the context or at [CLS]."""
        starts, ends = send(torch.tensor(batch.targets), logits.device).unbind(-1)
        return losses.spans(logits, starts, ends, self._allowed(batch))

    def soft_loss(self, logits: Tensor, batch: FeatureBatch, temperature: float) -> Loss:
        """Compare with the teacher's distributions of start and end, half each."""
        barred = ~self._allowed(batch)[..., None]
        teacher = send(padded(batch.soft, batch.input_ids.shape[1]), logits.device)
        # (B, 2, T): a distribution over positions for start and end
        ours, theirs = (x.masked_fill(barred, _BARRED).transpose(1, 2) for x in (logits, teacher))
        return Loss(losses.soft_targets(ours, theirs, temperature).total / 2, len(batch.targets))

    def _allowed(self, batch: FeatureBatch) -> Tensor:
        """Return (B, T), True where a span may start or end."""
        allowed = batch.sequence_ids == 1
        allowed[:, 0] = True
        return allowed

    def evaluate(self, predict: Predict, examples: Sequence[QaExample]) -> Evaluation:
        """Score as SQuAD does, with the spec's threshold of "no answer"."""
        answers = self._answers(predict, examples)
        texts = [answer.best.text if answer.best else "" for answer in answers]
        return self._evaluation(Predicted(examples, texts, [answer.null_margin for answer in answers]))

    def tune(self, found: Sequence[Evaluation]) -> dict[str, Any]:
        """Choose one threshold of "no answer" for all files together, where any has a question without one."""
        files: list[Predicted] = [each.predictions for each in found]
        golds = [gold for file in files for gold in file.golds]
        if not golds or all(golds):
            return {}
        texts = [text for file in files for text in file.texts]
        margins = [margin for file in files for margin in file.margins]
        return {"null_threshold": best_null_threshold(golds, texts, margins).threshold}

    def rescore(self, found: Evaluation) -> Evaluation:
        """Score again by the chosen threshold."""
        return self._evaluation(found.predictions)

    def baseline(self, examples: Sequence[QaExample]) -> Baseline:
        """Score the prediction of no answer."""
        golds = [[text for text, _ in example.answers] for example in examples]
        found = squad_scores(golds, [""] * len(golds), [""] * len(golds))
        return Baseline("never an answer", {name: found[name] for name in ("exact_match", "f1")})

    def lengths(self, examples: Sequence[QaExample]) -> Lengths:
        """Count questions, which are cut; paragraphs are read in windows."""
        tokens = token_counts(self.tokenizer, [example.question for example in examples])
        return Lengths(tokens, self.spec.max_question_tokens, "max_question_tokens", "questions")

    def _evaluation(self, predicted: Predicted) -> Evaluation:
        """Score by SQuAD's rules; `f1_served` scores what the service answers, which may be none."""
        golds, texts, threshold = predicted.golds, predicted.texts, self.spec.null_threshold
        given = [
            "" if margin > threshold else text for margin, text in zip(predicted.margins, texts, strict=True)
        ]
        scores = squad_scores(golds, texts, given)
        if not all(golds):
            # The official script reports this too: the threshold chosen on these very questions.
            scores["best_f1"] = best_null_threshold(golds, texts, predicted.margins).f1
        elif self.spec.allows_no_answer:
            scores["f1_served"] = squad_em_f1(golds, given).f1
        scored = texts if all(golds) else given
        return Evaluation(scores, answer_findings(predicted.examples, scored), predicted)

    def _answers(self, predict: Predict, examples: Sequence[QaExample]) -> list[Answer]:
        """Answer each question; the caller weighs the null answer."""
        windows = self.windows(examples)
        logits = iter(predict([window.encoding for parts in windows for window in parts]))
        return [
            decode(example.context, parts, [next(logits) for _ in parts], self.spec)
            for example, parts in zip(examples, windows, strict=True)
        ]


def answer_findings(examples: Sequence[QaExample], predictions: Sequence[str]) -> Findings:
    """Analyse answers, "" meaning none: kinds of mistake, and the answers farthest from the gold ones."""
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        kind, f1 = _answer_kind(example, predicted)
        counts[kind] += 1
        if f1 < 1:
            golds = " | ".join(dict.fromkeys(text for text, _ in example.answers)) or "(no answer)"
            text = f"{example.question} ↵ {_around_answer(example)}"
            wrong.append((f1, Mistake(example.id, text, golds, predicted or "(no answer)")))
    wrong.sort(key=lambda pair: pair[0])
    # Most mistakes are equally bad. Spread the choice, so that not all are of the file's first article.
    chosen = np.linspace(0, len(wrong) - 1, min(MISTAKES_SHOWN, len(wrong))).astype(int)
    wanted = {"an answer" if example.answers else "no answer" for example in examples}
    given = {"an answer" if predicted else "no answer" for predicted in predictions}
    return Findings(
        len(examples),
        len(wrong),
        tuple(wrong[i][1] for i in chosen),
        counts=dict(counts),
        never_predicted=tuple(sorted(wanted - given)),
    )


def _answer_kind(example: QaExample, predicted: str) -> tuple[str, float]:
    """Return the kind of an answer and its F1."""
    if not example.answers:
        return ("rightly no answer", 1.0) if not predicted else ("answered where there is no answer", 0.0)
    if not predicted:
        return "no answer where there is one", 0.0
    scores = squad_em_f1([[text for text, _ in example.answers]], [predicted])
    if scores.exact == 1:
        return "right", 1.0
    return ("partly right", scores.f1) if scores.f1 > 0 else ("wrong", 0.0)


def _around_answer(example: QaExample) -> str:
    """Cut the context to the text around the first gold answer."""
    middle = example.answers[0][1] if example.answers else 0
    start = max(0, middle - EXCERPT // 2)
    return ("…" if start else "") + excerpt(example.context[start:])
