"""Texts and documents of a comparison's requests, without the form that each baseline gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serve.load.answers import Expected, expected_labels, expected_spans
from benchmarks.serve.load.texts import (
    MIXTURE,
    SENTENCES,
    made_up_documents,
    made_up_texts,
    read_documents,
    read_texts,
)
from bert.checkpoint.weights import Checkpoint

LIST_TEXTS = 64
"""Texts of one request of the workload `lists`."""
NAMES = ("sentences", "mixed", "lists", "documents")
TEXT, LIST, DOCUMENT = "text", "list", "document"
Job = tuple[str, ...]
"""Content of one request: a text, a list of texts, or a question and its document."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind."""

    name: str
    kind: str
    """TEXT, LIST or DOCUMENT."""
    jobs: Sequence[Job]
    origin: str
    """Source of the texts."""
    connections: tuple[int, ...]
    """Connections of the closed loops, by default."""
    checked: int
    """Jobs at the beginning whose answers are compared with the reference's."""

    def expected(self, checkpoint: Checkpoint) -> list[list[Expected]]:
        """Return the reference's answers to the jobs that are checked."""
        jobs = self.jobs[: self.checked]
        if self.kind == DOCUMENT:
            return [expected_spans(checkpoint, [(question, context)]) for question, context in jobs]
        return [expected_labels(checkpoint, texts) for texts in jobs]


def workload(name: str, file: Path | None, count: int = 2000, documents: int = 24) -> Workload:
    """Return a workload of so many texts or documents; those of a file, where one is given, are all taken.

    The file holds a text a line; for documents it is one of SQuAD.
    """
    origin = file.name if file else "made up"
    if name == "documents":
        found = read_documents(file) if file else made_up_documents(documents)
        return Workload(name, DOCUMENT, found, origin, (1, 8), 3)
    texts = read_texts(file) if file else made_up_texts(count, mixture=_MIXTURES[name])
    if name == "lists":
        whole = [tuple(texts[at : at + LIST_TEXTS]) for at in range(0, len(texts), LIST_TEXTS)]
        lists = [group for group in whole if len(group) == LIST_TEXTS]
        if not lists:
            raise ValueError(f"lists need at least {LIST_TEXTS} texts, {file} has {len(texts)}")
        return Workload(name, LIST, lists, origin, (1, 8), 1)
    return Workload(name, TEXT, [(text,) for text in texts], origin, (1, 8, 32, 64), 16)


_MIXTURES = {"sentences": SENTENCES, "mixed": MIXTURE, "lists": MIXTURE}
