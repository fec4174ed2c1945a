"""One graph of a checkpoint: built, compared with the checkpoint, scored. Nothing is written here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bert.weights import Checkpoint
from model_export.batch import Text
from model_export.dev_score import DevSet, read_dev
from model_export.precision import MAKERS, Fp32
from model_export.progress import step
from model_export.reference import Floats, Reference
from model_export.structure import check_structure
from model_export.texts import shipped_texts
from model_export.tolerance import Tolerance
from model_export.verify import check_parity, check_score, references


class Subject:
    """A checkpoint and what its graphs are compared on; what takes time is worked out once, when it is asked for."""

    def __init__(self, checkpoint: Checkpoint, dev: Path | None = None, dev_limit: int | None = None) -> None:
        """`dev` is labelled data, of which at most `dev_limit` examples are read."""
        self.checkpoint, self.dev_file, self._dev_limit = checkpoint, dev, dev_limit
        self.texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)

    @cached_property
    def expected(self) -> list[Floats]:
        """What the checkpoint itself answers to the shipped texts."""
        c = self.checkpoint
        return references(Reference(c.config, c.spec, c.weights), self.texts)

    @cached_property
    def float32(self) -> Fp32:
        """The float32 graph."""
        return MAKERS["fp32"](self.checkpoint, self.texts)

    @cached_property
    def dev(self) -> DevSet:
        """The labelled data. Raises DataError or ExportError."""
        assert self.dev_file is not None
        return read_dev(self.dev_file, self.checkpoint.spec, self.checkpoint.tokenizer, self._dev_limit)

    @cached_property
    def _on_dev(self) -> list[Floats]:
        return self.float32.packed(self.dev.texts)

    def float32_on_dev(self, _: Sequence[Text]) -> list[Floats]:
        """Return what the float32 graph answers to the labelled data."""
        return self._on_dev


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A graph that may be written, with the proof that it may."""

    exported: Fp32
    answers: list[Floats]
    """To the shipped texts, packed with others."""
    parity: dict[str, Any]
    dev_score: dict[str, Any]
    """Empty where no labelled data were given."""


def build(subject: Subject, precision: str) -> Fp32:
    """Build a graph and look at its structure. Raises ExportError."""
    with step(f"building the {precision} graph"):
        checkpoint = subject.checkpoint
        is_float32 = precision == "fp32"
        exported = subject.float32 if is_float32 else MAKERS[precision](checkpoint, subject.texts)
        check_structure(exported.model, checkpoint.config.num_hidden_layers)
        return exported


def prove(subject: Subject, exported: Fp32, tolerance: Tolerance) -> Candidate:
    """Compare a graph with the checkpoint, and score it. Raises ParityError, DataError or ExportError."""
    texts = subject.texts
    parity = {"check": exported.how, "on": "texts shipped with bert-export"}
    with step(f"comparing {len(texts)} texts with the checkpoint"):
        answers = exported.packed(texts)
        parity |= check_parity(
            exported.precision,
            subject.checkpoint.spec,
            subject.expected,
            exported.alone(texts),
            answers,
            tolerance,
            exported.in_numpy(texts),
        )
    return Candidate(
        exported, answers, parity, _score(subject, exported, tolerance) if subject.dev_file else {}
    )


def _score(subject: Subject, exported: Fp32, tolerance: Tolerance) -> dict[str, Any]:
    assert subject.dev_file is not None
    with step(f"scoring on {subject.dev_file}"):
        is_float32 = exported is subject.float32
        before, after = (
            (None, subject.float32_on_dev) if is_float32 else (subject.float32_on_dev, exported.packed)
        )
        scores = check_score(
            exported.precision, subject.checkpoint.spec, subject.dev, before, after, tolerance
        )
        return {"data": subject.dev_file.name, **scores}
