"""report.md: what a person reads after a run."""

from collections.abc import Sequence

from training.core.progress import format_seconds
from training.data.summary import FileSummary
from training.report.content import DevFile, RunReport, confusion_name, training_summary
from training.report.error_analysis import Findings, Mistake


def as_markdown(report: RunReport, pictures: Sequence[str] = ()) -> str:
    """Return the content of report.md; `pictures` are the names of files beside it."""
    parts = [f"# {report.title}\n"]
    if report.command:
        parts.append(f"```\n{report.command}\n```\n")
    if report.warnings:
        parts.append("## Warnings\n\n" + "".join(f"- {escaped(line)}\n" for line in report.warnings))
    if report.data:
        parts.append(_data_section(report.data))
    if report.recipe:
        parts.append(report.recipe + ".\n")
    parts.append(_training_line(report))
    parts.append(_scores_table(report.dev) if report.dev else "No held-out data was given to score on.\n")
    if "curve.png" in pictures:
        parts.append("![loss and dev score over steps](curve.png)\n")
    for file in report.dev:
        if file.findings is not None:
            parts.append(_file_section(file.name, file.findings, confusion_name(file.name), pictures))
    return "\n".join(parts)


def _training_line(report: RunReport) -> str:
    summary = training_summary(report.history)
    if not summary:
        return ""
    kept = "" if report.best_step is None else f" The checkpoint kept is that of step {report.best_step}."
    return (
        f"{summary['steps']:,.0f} steps over {summary['tokens']:,.0f} tokens "
        f"in {format_seconds(summary['seconds'])}, {summary['tokens_per_second']:,.0f} tokens a second; "
        f"loss at the end {summary['final_loss']:.4f}.{kept}\n"
    )


def _scores_table(dev: Sequence[DevFile]) -> str:
    names = list(dict.fromkeys(name for file in dev for name in file.scores))
    rows = []
    for file in dev:
        rows.append([file.name, *(_number(file.scores.get(name)) for name in names)])
        if file.baseline is not None:
            scores = file.baseline.scores
            rows.append([f"baseline: {file.baseline.rule}", *(_number(scores.get(name)) for name in names)])
    return "## Scores\n\n" + table(["held-out file", *names], rows)


def _data_section(files: Sequence[FileSummary]) -> str:
    lines = []
    for file in files:
        too_long = f"; {file.too_long}" if file.too_long else ""
        lines.append(f"- {escaped(file.sentence + too_long)}\n")
    return "## Data\n\n" + "".join(lines)


def _file_section(name: str, found: Findings, picture: str, pictures: Sequence[str]) -> str:
    parts = [f"## {escaped(name)}\n"]
    if found.counts:
        rows = [[kind, str(count)] for kind, count in sorted(found.counts.items(), key=lambda pair: -pair[1])]
        parts.append(table(["outcome", "count"], rows))
    if found.by_class:
        columns = ("precision", "recall", "f1")
        rows = [
            [label, *(_number(scores[column]) for column in columns), f"{scores['support']:.0f}"]
            for label, scores in found.by_class.items()
        ]
        parts.append(table(["class", *columns, "gold"], rows))
    if picture in pictures:
        parts.append(f"![confusion matrix]({picture})\n")
    if found.mistakes:
        parts.append(_mistakes(found))
    return "\n".join(parts)


def _mistakes(found: Findings) -> str:
    count = (
        f"{found.wrong} of {found.examples} not wholly right; here are"
        if found.wrong
        else "The farthest off,"
    )
    lines = [f"### Mistakes\n\n{count} {len(found.mistakes)}:\n"]
    lines += [f"{number}. {_mistake(mistake)}" for number, mistake in enumerate(found.mistakes, 1)]
    return "\n".join(lines) + "\n"


def _mistake(mistake: Mistake) -> str:
    sure = "" if mistake.confidence is None else f" ({mistake.confidence:.2f})"
    first = f"gold **{escaped(mistake.gold)}**, predicted **{escaped(mistake.predicted)}**{sure}"
    return f"{first} · id {escaped(mistake.id)}\n   > {escaped(mistake.text)}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right; the first cell of a row is a name."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    texts = [[cell if index == 1 else escaped(cell) for cell in line] for index, line in enumerate(lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in texts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def escaped(text: str) -> str:
    """One line, in which nothing is taken for Markdown or HTML: texts of users may hold anything."""
    line = " ".join(text.split())
    for letter in "\\`*[]|<>#":
        line = line.replace(letter, f"\\{letter}")
    return line
