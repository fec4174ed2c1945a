"""Reading comprehension: questions and paragraphs to windows, and where the answer lies in each."""

from collections.abc import Sequence

import numpy as np

from bert.errors import InputError
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Floats, Head, Positions, Reads, Task, softmax
from bert.tokenizer import Encoding, Pieces, Tokenizer, Window


def encode(tokenizer: Tokenizer, question: Pieces, context: Pieces, spec: TaskSpec) -> list[Window]:
    """Cut a paragraph into windows of [CLS] question [SEP] window [SEP].

    A question over `spec.max_question_tokens` loses its end, as in the paper's recipe. Raises InputError where the
    question has no pieces.
    """
    if len(question) == 0:
        raise InputError("the question is empty")
    question = question.slice(0, spec.max_question_tokens)
    return tokenizer.windows(context, spec.max_tokens, spec.stride, prefix=question)


def span_target(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Return the first and last token of an answer at characters [start, end) of the context.

    (0, 0), [CLS], where the window does not hold the whole answer. Characters at the answer's ends that no piece
    has, such as a space, do not count against it inside the window.
    """
    inside = np.flatnonzero(encoding.sequence_ids == 1)
    starts, ends = encoding.offsets[inside].T  # (C,) each, C pieces of context
    shared = inside[(ends > start) & (starts < end)]  # tokens that share a character with the answer
    if not len(shared) or starts[0] > start or ends[-1] < end:
        return 0, 0
    return int(shared[0]), int(shared[-1])


class QaTask(Task):
    """The answer to a question inside its paragraph."""

    name = "qa"
    head = Head.LINEAR
    head_name = "qa_outputs"
    architectures = ("BertForQuestionAnswering",)
    has_questions = True
    has_windows = True
    fixed_outputs = 2  # start and end
    fixed_reads = Reads.QUESTION
    compares = Compared.ANSWERS
    has_top_labels = False
    kept_share = 0.95

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return all positions."""
        return np.arange(len(encoding))

    def sample(
        self, tokenizer: Tokenizer, text: Sequence[Pieces], spec: TaskSpec, masks: int = 1
    ) -> list[Encoding]:
        """Encode a question and its paragraph, window by window."""
        return [window.encoding for window in encode(tokenizer, text[0], text[1], spec)]

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return where the answer starts and ends: (2, T) probabilities."""
        return [softmax(scores.T) for scores in outputs]
