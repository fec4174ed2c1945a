"""The tsv files of GLUE (Wang et al. 2018), as their authors give them.

Quotes in them are letters like any other. CoLA has no header, MRPC starts with a byte order mark, and QQP has
a few rows that are cut off, which every published reader leaves out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bert.data.examples import TextExample
from bert.data.files import Problems
from bert.data.rows import TextColumns, text_examples
from bert.data.tables import even_rows, refuse_missing, split_records
from bert.errors import DataError

COLA_HEADER = ("source", "label", "original", "sentence")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask:
    """Columns of a task's texts and labels, and the labels in the order of the paper's code."""

    columns: tuple[str, ...]  # text, and the second one of a pair
    label: str
    labels: tuple[str, ...] = ()  # empty: regression
    id: str | None = "index"
    has_broken_rows: bool = False


_SENTENCES = ("sentence1", "sentence2")
_MNLI = GlueTask(_SENTENCES, "gold_label", ("entailment", "neutral", "contradiction"))
GLUE_TASKS = {
    "cola": GlueTask(("sentence",), "label", ("unacceptable", "acceptable"), id=None),
    "sst-2": GlueTask(("sentence",), "label", ("negative", "positive"), id=None),
    "mrpc": GlueTask(("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent"), id=None),
    "qqp": GlueTask(("question1", "question2"), "is_duplicate", ("not_duplicate", "duplicate"), "id", True),
    "sts-b": GlueTask(_SENTENCES, "score"),
    "mnli": _MNLI,
    "snli": _MNLI,
    "qnli": GlueTask(("question", "sentence"), "label", ENTAILMENT),
    "rte": GlueTask(_SENTENCES, "label", ENTAILMENT),
    "wnli": GlueTask(_SENTENCES, "label", ("not_entailment", "entailment")),
}
"""Lower-case name → task."""


def glue_task(name: str) -> GlueTask:
    """Return the task of a name, however it is written (SST-2, sst2, STSB). Raises ValueError if unknown."""
    plain = name.lower().replace("-", "").replace("_", "")
    for known, found in GLUE_TASKS.items():
        if known.replace("-", "") == plain:
            return found
    raise ValueError(f"unknown GLUE task {name!r}; known are {', '.join(GLUE_TASKS)}")


def read_glue(
    path: str | Path, task: str | None = None, label_names: Sequence[str] = ()
) -> list[TextExample]:
    """Read one GLUE tsv file; without a task's name, its header tells which columns are read.

    With the name, labels are checked and 0 and 1 are named (SST-2: negative, positive); without it they stay
    as the file has them. Test files of GLUE have no labels: theirs are None. Scores (STS-B) are floats.
    `label_names` are the labels of a model: 0 and 1 get the task's names where those are among them, else theirs.
    Raises DataError with all rows that cannot be read.
    """
    problems = Problems(path)
    records = split_records(path, "\t", quoted=False)
    first_line, first = next(records)
    header = _header(first)
    names = header or list(COLA_HEADER)
    known = glue_task(task) if task is not None else guess_task(names, label_names)
    if known is None:
        reason = f"is of no known GLUE task (columns {', '.join(names)}); name it, or read it as a table"
        raise DataError(path, 1, reason)
    columns = _columns(path, known, names, task is not None, label_names)
    if header is None:
        records = chain([(first_line, first)], records)
    rows = even_rows(names, records, problems, lenient=known.has_broken_rows)
    return text_examples(path, rows, columns, problems)


def _header(first: list[str]) -> list[str] | None:
    """Tell a header from CoLA's first row: source, 0 or 1, mark, sentence."""
    is_cola_row = len(first) == 4 and first[1] in ("0", "1") and first[2] in ("", "*")
    return None if is_cola_row else [name.strip() for name in first]


def guess_task(header: Collection[str], labels: Collection[str] = ()) -> GlueTask | None:
    """Return the task that a header is of, one with these labels if there is one; None for none."""
    fitting = [each for each in GLUE_TASKS.values() if {each.label, *each.columns} <= set(header)]
    # QNLI has all columns of SST-2; SST-2 and CoLA have the same.
    best = max((len(each.columns) for each in fitting), default=0)
    fitting = [each for each in fitting if len(each.columns) == best]
    return next((each for each in fitting if set(each.labels) <= set(labels)), next(iter(fitting), None))


def text_columns_of(header: Collection[str]) -> tuple[str, ...]:
    """Return the columns of texts that a header of GLUE has, of a pair both; empty if it is of none."""
    fitting = (each.columns for each in GLUE_TASKS.values() if set(each.columns) <= set(header))
    return max(fitting, key=len, default=())


def _columns(
    path: str | Path, task: GlueTask, header: list[str], named: bool, label_names: Sequence[str]
) -> TextColumns:
    refuse_missing(path, task.columns, header, 1)
    labels, names = (task.labels, task.labels) if named else ((), ())
    if label_names and task.labels:
        labels = tuple(label_names)
        names = task.labels if set(task.labels) <= set(label_names) else labels
    return TextColumns(
        text=task.columns[0],
        text_pair=task.columns[1] if len(task.columns) > 1 else None,
        label=task.label if task.label in header else None,
        id=task.id if task.id in header else None,
        problem_type="single_label" if task.labels else "regression",
        label_names={str(number): name for number, name in enumerate(names)},
        skip_labels=("-",),
        labels=labels or None,
    )
