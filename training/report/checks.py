"""Warnings of a finished run: signs that the model learned little, or did not see all of the data."""

from collections import Counter
from collections.abc import Mapping, Sequence

from training.labelled.summary import ACCEPTABLE_SHARE, FileSummary
from training.report.error_analysis import TRUNCATED, DevFile

MIN_STEPS = 20
"""Steps of a run below which nothing is said of its loss."""
LITTLE_FALL = 0.05
"""Share of the loss at the start that it must fall by."""
NAMES_SHOWN = 5
LESS_IS_BETTER = ("rmse",)


def data_warnings(files: Sequence[FileSummary]) -> list[str]:
    """Name labels without a training example, and files of which many texts are cut."""
    return unseen_labels(files) + [
        f"{file.part} {file.name}: {file.too_long}"
        for file in files
        if file.is_cut and file.longer > ACCEPTABLE_SHARE * file.inputs
    ]


def unseen_labels(files: Sequence[FileSummary]) -> list[str]:
    """Name labels without a training example."""
    counts = Counter[str]()
    for file in files:
        if file.part == "train":
            counts.update(file.labels)
    missing = [label for label, count in counts.items() if not count]
    return [f"no training example has the label {_listed(missing)}: it cannot be learned"] if missing else []


def result_warnings(
    files: Sequence[DevFile], metric: str | None, history: Sequence[Mapping[str, float]]
) -> list[str]:
    """Name classes that are never predicted, scores no better than the baseline's, and a loss that did not fall."""
    checks = (_never_predicted, _below_baseline, _not_as_served)
    return [line for file in files for check in checks for line in check(file, metric)] + _flat_loss(history)


def _never_predicted(file: DevFile, _: str | None) -> list[str]:
    never = file.findings.never_predicted if file.findings is not None else ()
    return [f"{file.name}: the model never predicts {_listed(never)}, which the file has"] if never else []


def _below_baseline(file: DevFile, metric: str | None) -> list[str]:
    if file.baseline is None:
        return []
    lines = []
    for name in dict.fromkeys([metric, *LESS_IS_BETTER]):
        reached, trivial = file.scores.get(str(name)), file.baseline.scores.get(str(name))
        if reached is None or trivial is None:
            continue
        if (reached >= trivial) if name in LESS_IS_BETTER else (reached <= trivial):
            lines.append(
                f"{file.name}: {name} {reached:.4f} is no better than the baseline's {trivial:.4f} ({file.baseline.rule})"
            )
    return lines


def _not_as_served(file: DevFile, metric: str | None) -> list[str]:
    served = file.scores.get(f"{metric}{TRUNCATED}")
    if served is None:
        return []
    return [
        f"{file.name}: {metric} is over all windows of a text, which bert-serve reads where a request sets windows: it "
        f"refuses a text over max_tokens, or cuts it where a request sets truncate, and so cut the texts score {served:.4f}"
    ]


def _flat_loss(history: Sequence[Mapping[str, float]]) -> list[str]:
    """Compare the first and the last tenth of the steps."""
    part = len(history) // 10
    if len(history) < MIN_STEPS:
        return []
    first, last = (sum(step["loss"] for step in steps) / part for steps in (history[:part], history[-part:]))
    if last <= (1 - LITTLE_FALL) * first:
        return []
    return [
        f"the training loss did not fall: {first:.4f} over the first {history[part - 1]['step']:,.0f} steps, {last:.4f} "
        "over the last; try a higher learning_rate or more epochs, and look at the labels of some examples"
    ]


def _listed(names: Sequence[str]) -> str:
    left = len(names) - NAMES_SHOWN
    return ", ".join(map(repr, names[:NAMES_SHOWN])) + (f" and {left} more" if left > 0 else "")
