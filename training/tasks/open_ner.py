"""Fine-tuning for entities of any labels, as GLiNER learns them (Zaratiana et al. 2023, arXiv 2311.08526).

A text is read behind labels: those of its entities, and others that it has none of. Each step draws the others anew.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.gliner import GLINER_CONFIG
from bert.config import BertConfig
from bert.data.examples import EntitiesExample
from bert.encoding import Encoding, Ints
from bert.files import read_object
from bert.metrics.entities import span_f1
from bert.nn import losses
from bert.nn.heads import BertHead
from bert.nn.losses import Loss
from bert.nn.prompted import NO_SPAN, BertForOpenNer
from bert.tasks.open_ner.decode import END, INSIDE, START, Choosing, candidates, decode
from bert.tasks.open_ner.inputs import LABEL, WORD, Words, cuts, encode, places, prompt_ids, windows
from bert.tasks.spec import LabelPrompt
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import Baseline, Findings, Mistake, excerpt, worst
from training.settings import RANDOM, FinetuneSettings, OpenNerSettings
from training.tasks.base import Evaluation, Feature, FeatureBatch, FinetuneTask, Floats, Predict, token_counts

_TEXT_SHARE = 0.75
"""Part of `max_tokens` that a text may take beside its labels; a longer one is read in windows."""
Spans = Sequence[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """Words of a text, and its entities among the labels that it is asked for."""

    words: Sequence[Ints]
    entities: Spans
    """First word, last word and label."""
    labels: tuple[str, ...] | None
    negatives: tuple[str, ...] | None
    places: Sequence[tuple[int, int, int]] = field(default=())
    """First word, last word and number of the label, once labels are drawn."""


class OpenNerFinetuning(FinetuneTask):
    """Entities of any labels. Words are GLiNER's, as in the service; a long text is read in windows."""

    architecture = "BertForOpenNer"
    metrics = ("f1", "precision", "recall")
    options = OpenNerSettings()
    origin: Mapping[str, Any] | None = None
    """Content of `gliner_config.json` of the GLiNER that training begins with, where it is one."""

    @property
    def prompt(self) -> LabelPrompt:
        """How labels are read."""
        assert self.spec.label_prompt is not None
        return self.spec.label_prompt

    @property
    def room(self) -> int:
        """Most pieces of a text, or window."""
        return int(_TEXT_SHARE * self.spec.max_tokens) - 2

    def configure(
        self, settings: FinetuneSettings, label_counts: Mapping[str, float], examples: float, world: int = 1
    ) -> None:
        """Take over loss and sampling, and what the base says of itself where it is a GLiNER."""
        self.options = settings.open_ner
        file = resolve_base(settings.base.removeprefix(RANDOM)) / GLINER_CONFIG
        self.origin = read_object(file) if file.is_file() else None

    def model(self, config: BertConfig) -> BertHead:
        """Return a body with GLiNER's head."""
        return BertForOpenNer(config, self.prompt, self.options.dropout, self.origin)

    def _words(self, examples: Sequence[EntitiesExample]) -> list[Words]:
        """Return the words with pieces of each text; their bounds are n, n + 1 of the n-th word of the example."""
        texts = [example.text[a:b] for example in examples for a, b in example.words]
        ids = iter(self.tokenizer.ids(texts))
        return [
            Words.of(
                [(n, n + 1) for n in range(count)], [np.array(next(ids), np.int32) for _ in range(count)]
            )
            for count in (len(example.words) for example in examples)
        ]

    def features(self, examples: Sequence[EntitiesExample]) -> list[Feature]:
        """Make a feature of each window; an entity belongs to the windows that have all of it."""
        features, none = [], (np.zeros(0, np.int32), ())
        for example, words in zip(examples, self._words(examples), strict=True):
            kept = np.append(words.bounds[:, 0], len(example.words))
            entities = [
                (int(np.searchsorted(kept, a)), int(np.searchsorted(kept, b, "right")) - 1, label)
                for a, b, label in example.entities
            ]
            for start, end in cuts([min(len(ids), self.room) for ids in words.ids], self.room, self.prompt):
                ids = words.ids[start:end]
                within = [
                    (first - start, last - start, label)
                    for first, last, label in entities
                    if start <= first <= last < end
                ]
                asked = Asked(ids, within, example.labels, example.negatives)
                features.append(Feature((encode(ids, none, self.tokenizer, self.room),), asked))
        return features

    def drawn(self, features: Sequence[Feature], rng: np.random.Generator) -> list[Feature]:
        """Put labels before each text of a batch: its own and, in an order of chance, such as it has none of."""
        known = sorted({label for feature in features for _, _, label in feature.target.entities})
        return [self._with_labels(feature, known, rng) for feature in features]

    def _with_labels(self, feature: Feature, known: Sequence[str], rng: np.random.Generator) -> Feature:
        asked: Asked = feature.target
        own = dict.fromkeys(label for _, _, label in asked.entities)
        count = int(rng.integers(0, self.options.negatives, endpoint=True)) * len(asked.entities)
        others = [known[n] for n in rng.permutation(len(known)) if known[n] not in own]
        if asked.labels is not None:
            wanted: Sequence[str] = asked.labels
        else:
            wanted = [
                *own,
                *(others[: count if own else max(1, count)] if asked.negatives is None else asked.negatives),
            ]
        wanted = self._fitting(dict.fromkeys(wanted or [""]), feature.tokens)
        labels = [wanted[n] for n in rng.permutation(len(wanted))]
        number = {label: n for n, label in enumerate(labels)}
        found = [(first, last, number[label]) for first, last, label in asked.entities if label in number]
        encoding = encode(asked.words, self._prompt(labels), self.tokenizer, self.room)
        return replace(feature, encodings=(_marked(encoding),), target=replace(asked, places=found))

    def _ids(self, label: str) -> Ints:
        return np.array(self.tokenizer.ids([label])[0], np.int32)

    def _prompt(self, labels: Iterable[str]) -> tuple[Ints, list[int]]:
        return prompt_ids([self._ids(label) for label in labels], self.prompt)

    def _fitting(self, labels: Iterable[str], tokens: int) -> list[str]:
        """Return the first labels for which there is room beside a text of `tokens`; one at least."""
        kept, left = list[str](), self.spec.max_tokens - tokens - 1
        for label in labels:
            left -= 1 + len(self._ids(label))
            if kept and (left < 0 or len(kept) == self.options.max_labels):
                break
            kept.append(label)
        return kept

    def logits(self, model: nn.Module, batch: FeatureBatch) -> Tensor:
        """Return the scores (B, W, C, K) of a batch."""
        found: Tensor = model(
            batch.input_ids, batch.segment_ids, batch.attention_mask, marks=batch.sequence_ids
        )
        return found

    def outputs(self, logits: Floats, encodings: Sequence[Encoding]) -> list[Floats]:
        """Return the scores that may count (M, 3), of each encoding."""
        found = []
        for scores, encoding in zip(logits, encodings, strict=True):
            labels, words = places(encoding)
            rows = scores[: len(words), : len(labels)]
            found.append(candidates(rows.reshape(-1, rows.shape[-1])))
        return cast(list[Floats], found)

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compute the focal loss of all spans for all labels, over the number of spans; of words in token models."""
        targets, counted = torch.zeros(logits.shape), 0
        spans, options = self.prompt.judges_spans, self.options
        for row, asked in enumerate(batch.targets):
            for first, last, label in asked.places:
                if not spans:
                    targets[row, first, label, START] = targets[row, last, label, END] = 1
                    targets[row, first : last + 1, label, INSIDE] = 1
                elif last - first < logits.shape[-1]:
                    targets[row, first, label, last - first] = 1
            ends = np.minimum(np.arange(len(asked.words), 0, -1), logits.shape[-1])
            counted += int(ends.sum()) if spans else len(asked.words)
        exists = logits != NO_SPAN
        total = losses.focal(
            logits, send(targets, logits.device), exists,
            alpha=options.alpha, gamma=options.gamma, margin=options.margin, smoothing=options.smoothing,
        )  # fmt: skip
        return Loss(total, counted)

    def has_loss_on(self, examples: Sequence[EntitiesExample]) -> bool:
        """Return False: held-out texts are asked for other labels than those of training."""
        return False

    def evaluate(self, predict: Predict, examples: Sequence[EntitiesExample]) -> Evaluation:
        """Score entity F1, asking each text for all labels of the file, or for its own and some where there are too many."""
        known = sorted({label for example in examples for _, _, label in example.entities})
        texts, asked = self._words(examples), self._asked_of(examples, known)
        runs = [
            windows(words, self._prompt(labels), self.tokenizer, self.spec) if labels and words.ids else []
            for words, labels in zip(texts, asked, strict=True)
        ]
        found = iter(predict([_marked(run.encoding) for read in runs for run in read]))
        golds, given = [], []
        for example, words, labels, read in zip(examples, texts, asked, runs, strict=True):
            bounds = np.array(example.words, np.int32).reshape(-1, 2)[words.bounds[:, 0]]
            parts, ends = [next(found) for _ in read], example.words
            entities = decode(example.text, bounds, labels, read, parts, self.prompt, Choosing())
            given.append({(entity.label, entity.start, entity.end) for entity in entities})
            golds.append({(label, ends[first][0], ends[last][1]) for first, last, label in example.entities})
        scored = span_f1(golds, given)
        scores = {"f1": scored.f1, "precision": scored.precision, "recall": scored.recall}
        by_label = scored.types if len(known) <= self.options.max_labels else {}
        scores |= {f"f1_{label}": of_label.f1 for label, of_label in by_label.items()}
        table = {
            name: {"precision": t.precision, "recall": t.recall, "f1": t.f1, "support": t.support}
            for name, t in by_label.items()
        }
        return Evaluation(scores, _findings(examples, golds, given, table))

    def _asked_of(self, examples: Sequence[EntitiesExample], known: Sequence[str]) -> list[list[str]]:
        """Return what each text is asked for: its own labels and, as far as there is room, the file's others."""
        rng, asked = np.random.default_rng(len(known)), []
        for example in examples:
            own = sorted({label for _, _, label in example.entities})
            others = [known[n] for n in rng.permutation(len(known)) if known[n] not in own]
            asked.append(sorted(self._fitting([*own, *others], self.room + 2)))
        return asked

    def baseline(self, examples: Sequence[EntitiesExample]) -> Baseline:
        """Score the prediction of no entity."""
        return Baseline("no entity anywhere", {"f1": 0.0, "precision": 0.0, "recall": 0.0})

    def lengths(self, examples: Sequence[EntitiesExample]) -> Lengths:
        """Count texts, which are read in windows that leave room for labels."""
        tokens = token_counts(self.tokenizer, [example.text for example in examples])
        return Lengths(tokens + 2, self.room + 2, unit="texts", in_windows=True)


def _marked(encoding: Encoding) -> Encoding:
    """Return the encoding with nothing but the places of labels and of words' first pieces in its sequence ids."""
    marks = np.full(len(encoding), -1, np.int32)
    for mark, found in zip((LABEL, WORD), places(encoding), strict=True):
        marks[found] = mark
    return Encoding(encoding.ids, encoding.segment_ids, encoding.offsets, encoding.word_ids, marks)


def _findings(
    examples: Sequence[EntitiesExample],
    golds: Sequence[Collection[tuple[str, int, int]]],
    given: Sequence[Collection[tuple[str, int, int]]],
    table: Mapping[str, Mapping[str, float]],
) -> Findings:
    """Show the texts with most wrong entities."""
    wrong = []
    for example, gold, found in zip(examples, golds, given, strict=True):
        if mistakes := len(set(gold) ^ set(found)):
            told = _told(example.text, gold), _told(example.text, found)
            wrong.append((mistakes, Mistake(example.id, excerpt(example.text), *told)))
    return Findings(len(examples), len(wrong), worst(wrong), table)


def _told(text: str, spans: Iterable[tuple[str, int, int]]) -> str:
    ordered = sorted(spans, key=lambda span: span[1:])
    return ", ".join(f"{label}[{text[start:end]}]" for label, start, end in ordered) or "(none)"
