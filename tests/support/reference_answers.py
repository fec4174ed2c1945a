"""The slow, independent reference: transformers' own classes and pipelines, peft's merge, a plain reading of SQuAD.

Nothing of this project's tokenizer, decoders or weights code is used here.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray

CLASSES = {
    "classification": transformers.BertForSequenceClassification,
    "ner": transformers.BertForTokenClassification,
    "qa": transformers.BertForQuestionAnswering,
    "similarity": transformers.BertModel,
}


def load_tokenizer(base: Path, max_tokens: int) -> Any:
    """Return transformers' tokenizer of the base, reading "[SEP]" in a text as text."""
    return transformers.AutoTokenizer.from_pretrained(
        base, model_max_length=max_tokens, split_special_tokens=True
    )


def load_model(base: Path, adapter: Path, task: str, labels: tuple[str, ...], *, segments: int = 2) -> Any:
    """Return transformers' model of the base, with so many segments, and the adapter merged into it by peft."""
    settings: dict[str, Any] = {}
    if labels:
        settings = {"id2label": dict(enumerate(labels)), "label2id": {x: n for n, x in enumerate(labels)}}
    model = CLASSES[task].from_pretrained(base, **settings)
    if segments != model.config.type_vocab_size:  # the adapter holds the whole table
        model.bert.embeddings.token_type_embeddings = torch.nn.Embedding(segments, model.config.hidden_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers renamed
        return peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().eval()


@torch.no_grad()
def embeddings(model: Any, tokenizer: Any, texts: list[str]) -> NDArray[np.float32]:
    """Return mean pooling over transformers' BertModel, as sentence-transformers has it: (N, H) of length 1."""
    rows = []
    for start in range(0, len(texts), 8):
        batch = tokenizer(texts[start : start + 8], padding=True, truncation=True, return_tensors="pt")
        hidden = model(**batch).last_hidden_state  # (B, T, H)
        mask = batch["attention_mask"][..., None]
        rows.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1))
    found: NDArray[np.float32] = torch.cat(rows).numpy()
    return found


class ShapeTagger(transformers.TokenClassificationPipeline):  # type: ignore[misc]
    """The pipeline for a model of six segments: each piece has the letter shape of its word as its segment."""

    def preprocess(self, sentence: str, **parameters: Any) -> Iterator[Any]:
        """Yield what the pipeline does, with other segments."""
        words = self.tokenizer(sentence, truncation=True).word_ids()
        for item in super().preprocess(sentence, **parameters):
            extents: dict[int, list[int]] = {}
            for word, (start, end) in zip(words, item["offset_mapping"][0].tolist(), strict=True):
                if word is not None:
                    extents.setdefault(word, [start, end])[1] = end
            shapes = [0 if word is None else _shape(sentence[slice(*extents[word])]) for word in words]
            item["token_type_ids"] = torch.tensor([shapes])
            yield item

    def _forward(self, model_inputs: Any) -> dict[str, Any]:
        """Run a text once, however many strategies ask for it."""
        outputs: dict[str, dict[str, Any]] = self.__dict__.setdefault("_outputs", {})
        sentence = model_inputs["sentence"]
        if sentence not in outputs:
            outputs[sentence] = super()._forward(model_inputs)
        return dict(outputs[sentence])


def _shape(word: str) -> int:
    """Return 1 for lower case, 2 Capitalised, 3 UPPER, 4 mIxed, 5 digits, 0 for all else."""
    cased = [c for c in word if c.isupper() or c.islower()]
    if not cased:
        return 5 if any(c.isdigit() for c in word) else 0
    upper = [c.isupper() for c in cased]
    if not any(upper):
        return 1
    if all(upper):
        return 3 if sum(c.isalpha() for c in word) > 1 else 2
    return 2 if word[0].isupper() and sum(upper) == 1 else 4


@dataclass(frozen=True)
class SlowAnswer:
    """What the reference answers; start and end are None where there is no answer."""

    start: int | None
    end: int | None
    score: float
    no_answer_score: float
    margin: float
    """How far the choice between an answer and none was from the other one, in logits."""


@torch.no_grad()
def answer(model: Any, tokenizer: Any, question: str, context: str, spec: dict[str, Any]) -> SlowAnswer:
    """Answer as google-research/bert's run_squad.py does, trying every span of every window."""
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=spec["max_tokens"],
        stride=spec["stride"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    spans: dict[tuple[int, int], float] = {}
    null, first_piece = math.inf, 0
    extents = []  # per window: index of its first piece in the context, number of pieces
    for w in range(len(windows["input_ids"])):
        count = sum(part == 1 for part in windows.sequence_ids(w))
        extents.append((first_piece, count))
        first_piece += count - spec["stride"]
    for w, (first, count) in enumerate(extents):
        tensors = {
            name: torch.tensor([windows[name][w]])
            for name in ("input_ids", "token_type_ids", "attention_mask")
        }
        output = model(**tensors)
        starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        null = min(null, starts[0] + ends[0])
        places = [t for t, part in enumerate(windows.sequence_ids(w)) if part == 1]
        offsets = windows["offset_mapping"][w]
        for i in range(count):
            if not _has_most_context(extents, w, first + i):
                continue
            for j in range(i, min(count, i + spec["max_answer_tokens"])):
                key = (offsets[places[i]][0], offsets[places[j]][1])
                spans[key] = max(spans.get(key, -math.inf), starts[places[i]] + ends[places[j]])
    return _choose(spans, null, spec)


def _has_most_context(extents: list[tuple[int, int]], window: int, piece: int) -> bool:
    best, best_window = -math.inf, -1
    for w, (first, count) in enumerate(extents):
        if first <= piece < first + count:
            score = min(piece - first, first + count - 1 - piece) + 0.01 * count
            if score > best:
                best, best_window = score, w
    return best_window == window


def _choose(spans: dict[tuple[int, int], float], null: float, spec: dict[str, Any]) -> SlowAnswer:
    best = sorted(spans.items(), key=lambda item: -item[1])[: spec["n_best"]]
    competing = [total for _, total in best] + ([null] if spec["allows_no_answer"] else [])
    weights = [math.exp(x - max(competing)) for x in competing]
    shares = [weight / sum(weights) for weight in weights]
    no_answer = shares[-1] if spec["allows_no_answer"] else 0.0
    distance = (null - best[0][1]) - spec["null_threshold"]
    if spec["allows_no_answer"] and distance > 0:
        return SlowAnswer(None, None, no_answer, no_answer, abs(distance))
    return SlowAnswer(*best[0][0], shares[0], no_answer, abs(distance))
