"""Base class of all tasks; `bert.tasks.registry` lists them. P is the number of positions, K of scores."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding, Pieces
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

Floats = NDArray[np.floating[Any]]
Positions = NDArray[np.intp]


class Head(Enum):
    """Kind of layers after the encoder, in a checkpoint and in a graph."""

    LINEAR = "one linear layer at each position"
    POOLED = "the pooler (a linear layer and an activation), then one linear layer"
    VOCABULARY = "the masked language model's head, whose decoder is the word embedding"
    EMBEDDING = "pooling to a vector, perhaps dense layers after it"
    TOKENS = "dense layers at each token, to a vector"
    PROMPTED = "the text, its words or spans of them, beside labels that are part of the input"


class Reads(Enum):
    """Texts that make one input of a model."""

    TEXT = "one text"
    PAIR = "two texts"
    QUESTION = "a question and its paragraph, in windows"
    CHOICES = "a prompt and one of its choices"


class Compared(Enum):
    """Results of an 8-bit graph that export compares where there are no labelled data."""

    LABELS = "the label of each text or word"
    ANSWERS = "the answer to each question"
    ENTITIES = "the entities of each text"
    ORDER = "the rank correlation of scores"
    NOTHING = "nothing that would tell how good the model stays"


class Task:
    """A task: how it encodes, where its head looks, what its scores mean. Labels and limits are in TaskSpec."""

    name: str
    """Value of `task` in `task.json`, a manifest and the metrics."""
    head: Head
    head_name = "classifier"
    """Name of the linear layer of LINEAR and POOLED in a checkpoint."""
    architectures: tuple[str, ...] = ()
    """Names of the classes of `transformers` that are read as this task."""
    fixed_outputs: int | None = None
    """Scores of the head at each position; None is one for each label."""
    fixed_reads: Reads | None = None
    """Texts that make one input; None is one text or two, as the spec says."""
    compares = Compared.LABELS
    """Results of an 8-bit graph that export compares where there are no labelled data."""
    has_top_labels = True
    """The largest score of each row is the answer."""
    needs_labels = False
    has_tags = False
    """Each word of a labelled example has a tag."""
    has_open_labels = False
    """A labelled example has entities of labels that no model lists."""
    has_questions = False
    """A labelled example is a question about a paragraph."""
    has_windows = False
    """A long text is read in windows."""
    reads_words = False
    """Head positions depend on an encoding's words; else its length is enough."""
    has_one_position = False
    """The head looks at one position a text."""
    takes_largest = False
    """The head's scores are the largest of all tokens of a text."""
    has_problems = False
    """A model gives one label, several, or a number; its spec says which (`problem_type`)."""
    may_read_pairs = False
    """A model reads one text or two; its spec says which."""
    needs_pairs = False
    """Each labelled example has two texts."""
    judged_together = 1
    """Inputs of a model that have one answer together; export keeps them side by side."""
    kept_share = 0.98
    """Share of answers that an 8-bit graph must leave as they are."""

    @property
    def embeds(self) -> bool:
        """Tell whether a model gives a vector for each text."""
        return self.head is Head.EMBEDDING

    @property
    def has_dense(self) -> bool:
        """Tell whether dense layers and a norm may follow, for a vector of each text or of each token."""
        return self.head in (Head.EMBEDDING, Head.TOKENS)

    def head_outputs(self, spec: TaskSpec) -> int:
        """Return how many scores K the head gives at each position."""
        return len(spec.labels) if self.fixed_outputs is None else self.fixed_outputs

    def output(self, spec: TaskSpec, hidden_size: int, vocab_size: int) -> tuple[str, int]:
        """Return the graph's output: its name, and how many numbers it gives for each position or text."""
        return "logits", self.head_outputs(spec)

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the positions (P,) of a text, among its own tokens, where the head is evaluated: that of [CLS]."""
        return np.zeros(1, np.intp)

    def output_rows(self, encoding: Encoding) -> int:
        """Return how many rows of the graph's output are a text's: one for each position."""
        return len(self.head_positions(encoding))

    def usual_stride(self, max_tokens: int) -> int:
        """Return the tokens that neighbouring windows of a long text share where nothing else is said."""
        return min(128, max_tokens // 4) if self.has_windows else 0

    def learns_numbers(self, problem_type: str) -> bool:
        """Tell whether the labels of the data are numbers."""
        return False

    def reads(self, spec: TaskSpec) -> Reads:
        """Return what one input of the model is made of."""
        return self.fixed_reads or (Reads.PAIR if spec.pair else Reads.TEXT)

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode one text, or two, as the model reads them; one encoding for each window.

        `masks` pieces are hidden where a model fills masks.
        """
        if len(text) == 2:
            return [tokenizer.pair(text[0], text[1], spec.max_tokens, truncate=True)]
        return [tokenizer.single(text[0], spec.max_tokens, truncate=True)]

    def shorten(self, output: Floats) -> Floats:
        """Reduce a graph's output (P, K) to what travels to the decoder."""
        return output

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return what a user is told: probabilities where scores become some, else the scores."""
        return [softmax(scores) for scores in outputs]

    def top_labels(self, outputs: Sequence[Floats]) -> NDArray[np.intp] | None:
        """Return the top label of every text, word or mask; None where there are not two to choose from."""
        if not self.has_top_labels or outputs[0].shape[1] < 2:
            return None
        return np.asarray(np.concatenate(outputs).argmax(axis=-1))

    def compared(self, spec: TaskSpec) -> Compared:
        """Return what export compares of an 8-bit graph where there are no labelled data."""
        return self.compares

    def self_test_scores(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return the part of an engine's outputs that a bundle's self-test compares."""
        return list(outputs)


def softmax(logits: Floats) -> Floats:
    """Return probabilities (..., K) of logits (..., K)."""
    powers: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each logit alone, of any shape; large logits do not overflow."""
    powers = np.exp(-np.abs(logits))
    shares: Floats = np.where(logits >= 0, 1, powers) / (1 + powers)
    return shares
