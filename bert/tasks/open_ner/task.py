"""The task of models that find entities of the request's own labels."""

from collections.abc import Sequence

import numpy as np

from bert.encoding import Encoding, Pieces
from bert.tasks.open_ner.decode import FLOOR, candidates
from bert.tasks.open_ner.inputs import Words, places, prompt_ids, sample_vectors, windows
from bert.tasks.prompts import fitting_labels
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Positions, Task, sigmoid
from bert.tokenizer import Tokenizer

SAMPLE_LABELS = (
    ("person", "organization", "place", "date", "product"),
    (
        "name",
        "family member",
        "animal",
        "plant",
        "food",
        "clothing",
        "building",
        "body part",
        "time",
        "event",
    ),
    ("location",),
)
"""Sets of labels, all of other sizes, that texts of export, self-test and warm-up are read with, each text with one."""


class OpenNerTask(Task):
    """Spans of words, or words, that are judged for each label. R is a row for each word and label, word by word."""

    name = "open_ner"
    head = Head.PROMPTED
    compares = Compared.ENTITIES
    has_top_labels = False
    has_open_labels = True
    reads_words = True
    kept_share = 0.95

    def head_outputs(self, spec: TaskSpec) -> int:
        """Return the scores in a row: one for each width of a span, or start, end and inside."""
        assert spec.label_prompt is not None
        return spec.label_prompt.max_width if spec.label_prompt.judges_spans else 3

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the places of the labels' vectors, and then of each word's first piece."""
        return np.concatenate(places(encoding))

    def output_rows(self, encoding: Encoding) -> int:
        """Return the number of words times that of labels."""
        labels, words = places(encoding)
        vectors = encoding.label_vectors
        return (len(labels) if vectors is None else len(vectors)) * len(words)

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode the beginning of a text with one of SAMPLE_LABELS, or as much of it as there is room for."""
        assert spec.label_prompt is not None
        pieces = text[0]
        chosen = SAMPLE_LABELS[len(pieces) % len(SAMPLE_LABELS)]
        labels = fitting_labels(tokenizer, chosen, spec.max_tokens)
        known = np.flatnonzero(pieces.word_ids >= 0)
        ends = np.flatnonzero(np.diff(pieces.word_ids[known])) + 1
        words = Words.of([(0, 0)] * (len(ends) + 1), np.split(pieces.ids[known], ends))
        if not words.ids:
            words = Words.of([(0, 0)], [np.array([spec.label_prompt.separator_id], np.int32)])
        encoding = windows(words, prompt_ids(labels, spec.label_prompt), tokenizer, spec)[0].encoding
        if spec.label_prompt.has_encoder:
            encoding.label_vectors = sample_vectors(len(chosen), spec.label_prompt.width)
        return [encoding]

    def shorten(self, output: Floats) -> Floats:
        """Return the scores that may count: most of the others are those of spans that nobody would call an entity."""
        return candidates(output)

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the probability of each span, or of each word's part in one."""
        return [sigmoid(scores) for scores in outputs]

    def self_test_scores(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return sums over each text's candidates (1, 2), of which those at the edge, which come and go, are no part."""
        found = []
        for rows in outputs:
            over = sigmoid(rows[:, 2]) - FLOOR
            found.append(np.array([[over.sum(), (over * np.cos(rows[:, 0] + rows[:, 1])).sum()]], np.float32))
        return found
