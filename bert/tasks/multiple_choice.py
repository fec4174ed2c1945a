"""Multiple choice: a question with each of its choices makes a pair, and each pair has one score. Not served."""

from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared, Head, Positions, Reads, Task, first_token


class MultipleChoice(Task):
    """One score for each choice."""

    name = "multiple_choice"
    head = Head.POOLED
    architectures = ("BertForMultipleChoice",)
    has_one_position = True

    def head_outputs(self, spec: TaskSpec) -> int:
        """Return 1: a choice has one score."""
        return 1

    def head_positions(self, encoding: Encoding) -> Positions:
        """Return the position of [CLS]."""
        return first_token(encoding)

    def reads(self, spec: TaskSpec) -> Reads:
        """Return PAIR: the question and a choice."""
        return Reads.PAIR

    def compared(self, spec: TaskSpec) -> Compared:
        """Return NOTHING: one score says nothing without the other choices' scores."""
        return Compared.NOTHING
