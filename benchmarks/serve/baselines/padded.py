"""A text classifier as most servers hold one: a standard ONNX export, batches padded to their longest text.

Needs numpy, tokenizers and onnxruntime only. B texts, T tokens of the longest, K labels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers
from numpy.typing import NDArray

MOST_IN_GROUP, STRETCH = 8, 1.25
"""Texts padded together by hand: so many, the longest no more than so many times the shortest."""
SLACK_TOKENS = 4
"""And this many tokens more, for short texts."""


@dataclass(frozen=True, slots=True)
class Label:
    """The best label of a text and its probability."""

    label: str
    score: float


class PaddedClassifier:
    """A folder in Hugging Face's format with `model.onnx` in it, in one session."""

    def __init__(self, folder: Path, threads: int, *, spinning: bool) -> None:
        """Open it; threads that spin answer a little sooner and take the cores from all other processes."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        limit = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["model_max_length"]
        self._labels = [config["id2label"][str(number)] for number in range(len(config["id2label"]))]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(limit)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def padded(self, texts: Sequence[str]) -> list[Label]:
        """Classify all texts in one batch, padded to the longest."""
        return self._run(self._encode(texts))

    def grouped(self, texts: Sequence[str]) -> list[Label]:
        """Classify texts sorted by length, a group of like ones after the other; answers in the order of the texts."""
        encoded = self._encode(texts)
        found: dict[int, Label] = {}
        for group in groups([len(ids) for ids in encoded]):
            labels = self._run([encoded[number] for number in group])
            found.update(zip(group, labels, strict=True))
        return [found[number] for number in range(len(texts))]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def _run(self, encoded: Sequence[Sequence[int]]) -> list[Label]:
        shape = len(encoded), max(len(ids) for ids in encoded)
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)  # (B, T)
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}
        (logits,) = self._session.run(["logits"], inputs)
        return self._best(logits)

    def _best(self, logits: NDArray[np.float32]) -> list[Label]:
        """Return the softmax's best label of each text; logits (B, K)."""
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        return [Label(self._labels[int(row.argmax())], float(row.max())) for row in shares]


def groups(lengths: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the texts, sorted by length and cut where padding would begin to cost."""
    found: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        shortest = lengths[found[-1][0]] if found else 0
        fits = lengths[number] <= STRETCH * shortest + SLACK_TOKENS
        if not found or not fits or len(found[-1]) == MOST_IN_GROUP:
            found.append([])
        found[-1].append(number)
    return found
