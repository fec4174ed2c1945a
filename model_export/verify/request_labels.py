"""Labels of requests, on which an 8-bit model that takes them at /classify is compared with the float32 one."""

from collections.abc import Sequence

import numpy as np

from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.zero_shot import inference_of
from bert.tokenizer import Tokenizer
from model_export.reference import Floats
from model_export.verify.agreement import Changes
from model_export.verify.texts import EncodedText, make_text, plain_texts

LABELS = ("travel", "business", "politics", "nature", "family", "war", "music", "food")
TEXTS = 100
"""Texts that are asked about: of more a model of 12 layers would take longer than all else that is judged."""


def labelled_texts(tokenizer: Tokenizer, spec: TaskSpec) -> list[EncodedText]:
    """Return shipped texts, each beside a sentence about each of LABELS, or beside the labels of the task's samples.

    There are none for a model that takes no labels, or is too short for such sentences.
    """
    if spec.class_prompt is not None:
        singles, task = tokenizer.pieces(plain_texts(TEXTS)), TASKS[spec.task]
        return [make_text(task.sample(tokenizer, [each], spec)[0], spec.task) for each in singles]
    hypotheses = tokenizer.pieces([f"This example is {label}." for label in LABELS])
    room = spec.max_tokens - tokenizer.form.special_tokens(2)
    if inference_of(spec) is None or max(map(len, hypotheses)) >= room:
        return []
    texts = tokenizer.pieces(plain_texts(TEXTS))
    pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
    return [
        make_text(tokenizer.pair(*pair, spec.max_tokens, truncate=True, keep_second=True), spec.task)
        for pair in pairs
    ]


def changes_of(spec: TaskSpec, before: Sequence[Floats], after: Sequence[Floats]) -> Changes:
    """Count the decisions that differ: the best label of each text, and of each label by itself whether it holds."""
    was, is_now = _decisions(spec, before), _decisions(spec, after)
    return Changes("labels_of_requests", len(was), int((was != is_now).sum()))


def _decisions(spec: TaskSpec, outputs: Sequence[Floats]) -> Floats:
    if spec.class_prompt is not None:
        scores = np.stack(outputs)[:, :, 0]
        return np.concatenate([scores.argmax(axis=1), scores.ravel() > 0])
    meaning, logits = inference_of(spec), np.concatenate(outputs)
    assert meaning is not None
    entails = logits[:, meaning.entailment]
    best = entails.reshape(-1, len(LABELS)).argmax(axis=1)
    return np.concatenate([best, entails > logits[:, meaning.contradiction]])
