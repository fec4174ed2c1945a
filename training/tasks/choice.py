"""Fine-tuning for multiple choice: each ending is read beside the prompt and scored."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bert.config import BertConfig
from bert.data.examples import ChoiceExample
from bert.encoding import Encoding
from bert.metrics.classification import accuracy
from bert.nn import losses
from bert.nn.heads import BertForMultipleChoice, BertHead
from bert.nn.losses import Loss
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import MISTAKES_SHOWN, Baseline, Findings, Mistake, excerpt
from training.tasks.base import Evaluation, Feature, FeatureBatch, FinetuneTask, Predict, token_counts


class ChoiceFinetuning(FinetuneTask):
    """One right ending of several."""

    architecture = "BertForMultipleChoice"
    metrics = ("accuracy",)

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with one score a choice."""
        return BertForMultipleChoice(config)

    def _rows(self, examples: Sequence[ChoiceExample]) -> list[tuple[Encoding, ...]]:
        prompts = self.tokenizer.pieces([example.prompt for example in examples])
        endings = iter(self.tokenizer.pieces([choice for example in examples for choice in example.choices]))
        limit = self.spec.max_tokens
        return [
            tuple(self.tokenizer.pair(prompt, next(endings), limit, truncate=True) for _ in example.choices)
            for prompt, example in zip(prompts, examples, strict=True)
        ]

    def features(self, examples: Sequence[ChoiceExample]) -> list[Feature]:
        """Make a feature of each example, with a row for each choice."""
        return [Feature(rows, x.label) for rows, x in zip(self._rows(examples), examples, strict=True)]

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compute the cross entropy among the choices."""
        targets = send(torch.tensor(batch.targets), logits.device)
        return losses.cross_entropy(_by_feature(logits, batch), targets, count=len(targets))

    def soft_loss(self, logits: Tensor, batch: FeatureBatch, temperature: float) -> Loss:
        """Compare with the teacher's distribution over the choices."""
        teacher = send(torch.from_numpy(np.concatenate(batch.soft)), logits.device)
        return losses.soft_targets(_by_feature(logits, batch), _by_feature(teacher, batch), temperature)

    def evaluate(self, predict: Predict, examples: Sequence[ChoiceExample]) -> Evaluation:
        """Score accuracy: how often the right ending has the highest score."""
        rows = self._rows(examples)
        scores = iter(predict([row for choices in rows for row in choices]))
        chosen = [int(np.argmax([next(scores)[0] for _ in choices])) for choices in rows]
        gold = [example.label for example in examples]
        return Evaluation({"accuracy": accuracy(gold, chosen)}, choice_findings(examples, chosen))

    def baseline(self, examples: Sequence[ChoiceExample]) -> Baseline:
        """Score always taking the ending at the place where the right one is most often."""
        gold = [example.label for example in examples]
        place = int(np.bincount(gold).argmax())
        return Baseline(f"always ending {place + 1}", {"accuracy": accuracy(gold, [place] * len(gold))})

    def lengths(self, examples: Sequence[ChoiceExample]) -> Lengths:
        """Count the longest row of each example."""
        prompts = token_counts(self.tokenizer, [example.prompt for example in examples])
        endings = iter(token_counts(self.tokenizer, [choice for x in examples for choice in x.choices]))
        longest = [max(next(endings) for _ in example.choices) for example in examples]
        return Lengths(
            prompts + longest + self.tokenizer.form.special_tokens(2), self.spec.max_tokens, unit="questions"
        )


def _by_feature(logits: Tensor, batch: FeatureBatch) -> Tensor:
    """Return one logit a row (R, 1) as (B, C); examples with fewer choices than others are padded."""
    parts = torch.split(logits.reshape(-1), batch.counts)
    # Finite, so that a teacher's and a student's can be subtracted.
    return pad_sequence(list(parts), batch_first=True, padding_value=-1e9)


def choice_findings(examples: Sequence[ChoiceExample], predictions: Sequence[int]) -> Findings:
    """Analyse multiple choice: the wrong endings that were chosen."""
    wrong = [
        Mistake(e.id, excerpt(e.prompt), e.choices[e.label], e.choices[predicted])
        for e, predicted in zip(examples, predictions, strict=True)
        if e.label != predicted
    ]
    return Findings(len(examples), len(wrong), tuple(wrong[:MISTAKES_SHOWN]))
