"""A bundle's test of itself: a few texts, and what its graphs answered where they were verified.

Export writes it, and the service asks the same texts where the bundle is served: another processor takes other kernels,
and a graph that gives different outputs there is not served.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.errors import BundleError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

Floats = NDArray[np.float32]

SELF_TEST = "self_test.json"
DIGITS = 7
"""Significant digits of an answer in the file."""


@dataclass(frozen=True, slots=True, eq=False)
class SelfTest:
    """The content of `self_test.json`."""

    texts: tuple[tuple[str, ...], ...]
    """One text each, or two: a question with its paragraph, or a pair."""
    answers: Mapping[str, Sequence[Floats]]
    """File of a graph → its scores for each text, (P, K) or (1, H)."""
    tolerances: Mapping[str, float]
    """File of a graph → the largest relative error of its scores that is allowed."""
    instructions: str
    """Instructions of the processor that gave the answers."""

    def to_json(self) -> bytes:
        """Return the file's content."""
        answers = {
            file: [[_rounded(row) for row in scores.reshape(len(scores), -1)] for scores in found]
            for file, found in self.answers.items()
        }
        content = {
            "instructions": self.instructions,
            "tolerances": self.tolerances,
            "texts": self.texts,
            "answers": answers,
        }
        return json.dumps(content, ensure_ascii=False).encode("utf-8")

    @classmethod
    def parse(cls, content: bytes) -> "SelfTest":
        """Read a file's content. Raises BundleError."""
        try:
            values: dict[str, Any] = json.loads(content)
            texts = tuple(tuple(map(str, text)) for text in values["texts"])
            answers = {
                str(file): [np.array(scores, np.float32) for scores in found]
                for file, found in values["answers"].items()
            }
            tolerances = {str(file): float(allowed) for file, allowed in values["tolerances"].items()}
            return cls(texts, answers, tolerances, str(values["instructions"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{SELF_TEST} is damaged ({error!r}); export the checkpoint again") from None

    def relative_error(self, file: str, outputs: Sequence[Floats]) -> float:
        """Return how far a graph's scores for the texts are from those of export: root mean squares, as a share.

        Raises BundleError where they are not of the same shape, or the file is not known.
        """
        expected = self.answers.get(file)
        if expected is None or file not in self.tolerances:
            raise BundleError(f"{SELF_TEST} has no answers of {file}; export the checkpoint again")
        found = [scores.reshape(len(scores), -1) for scores in outputs]
        shapes = [each.shape for each in expected], [each.shape for each in found]
        if shapes[0] != shapes[1]:
            raise BundleError(
                f"{file} answers the texts of {SELF_TEST} with scores of shapes {shapes[1]}, and {shapes[0]} are "
                "expected; export the checkpoint again"
            )
        a, b = (
            np.concatenate([each.ravel() for each in side]).astype(np.float64) for side in (expected, found)
        )
        return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-12))


def encode(texts: Sequence[Sequence[str]], tokenizer: Tokenizer, spec: TaskSpec) -> list[Encoding]:
    """Return the texts as the task's model reads them, each cut to one window."""
    task = TASKS[spec.task]
    return [task.sample(tokenizer, tokenizer.pieces(text), spec)[0] for text in texts]


def _rounded(row: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in row.tolist()]
