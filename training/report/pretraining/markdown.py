"""report.md of a pretraining run: what was trained on what, how well, and what it looks like."""

from collections.abc import Mapping, Sequence

import yaml

from training.core.progress import format_seconds
from training.pretraining.fill_mask import Filled
from training.report.markdown import escaped, table
from training.report.pretraining.content import PretrainReport, summary

CAPTIONS = {
    "loss.png": "loss over steps",
    "held_out.png": "accuracy and perplexity on held-out text",
    "machine.png": "learning rate, gradient norm and speed",
}


def as_markdown(report: PretrainReport, pictures: Sequence[str] = ()) -> str:
    """Return the content of report.md; `pictures` are the names of files beside it."""
    parts = [f"# {escaped(report.title)}\n"]
    if report.command:
        parts.append(f"```\n{report.command}\n```\n")
    parts.append(table(["run", ""], _facts(report)).replace("---:", "---"))  # words, not numbers
    if report.warnings:
        parts.append("## Warnings\n\n" + "".join(f"- {escaped(warning)}\n" for warning in report.warnings))
    if report.looks:
        parts.append(_held_out(report))
    parts += [f"![{CAPTIONS[name]}]({name})\n" for name in pictures]
    if report.filled:
        parts.append(_fill_mask(report.filled))
    if report.settings:
        text = yaml.safe_dump(dict(report.settings), sort_keys=False, allow_unicode=True)
        parts.append(f"## Settings\n\n```yaml\n{text}```\n")
    return "\n".join(parts)


def _facts(report: PretrainReport) -> list[list[str]]:
    found = summary(report)
    rows = [[name, value] for name, value in report.facts.items()]
    if not found:
        return rows
    rows += [
        ["steps", f"{found['steps']:,.0f}"],
        ["tokens read", f"{found['tokens']:,.0f}"],
        ["time in steps", format_seconds(found["seconds"])],
        ["tokens a second", f"{found['tokens_per_second']:,.0f}"],
    ]
    if "mfu" in found:
        rows.append(["share of the machine's matmul peak (MFU)", f"{found['mfu']:.1%}"])
    return [*rows, ["training loss at the end", f"{found['final_loss']:.3f}"]]


def _held_out(report: PretrainReport) -> str:
    first, last = report.looks[0], report.looks[-1]
    columns: dict[str, Mapping[str, float]] = {f"step {first['step']:,.0f}": first}
    columns[f"step {last['step']:,.0f}"] = last
    rows = [
        [name, *(_shown(key, look) for look in columns.values())]
        for key, name in _MEASURES.items()
        if any(key in look for look in columns.values())
    ]
    lines = "## Held-out text\n\n" + table(["plain masking of 15% of the tokens", *columns], rows)
    levels = [
        f"{name} gives {level:.2f}"
        for name, level in (
            ("a blind guess", report.log_vocab),
            ("knowing word frequencies alone", report.unigram_entropy),
        )
        if level
    ]
    return lines + (f"\nTo compare the loss with: {', '.join(levels)}.\n" if levels else "")


_MEASURES = {
    "mlm_loss": "loss of masked words, nats",
    "perplexity": "perplexity",
    "mlm_accuracy": "masked words right",
    "pair_accuracy": "pairs right (chance 50%)",
}


def _shown(key: str, look: Mapping[str, float]) -> str:
    if key not in look:
        return ""
    return (
        f"{look[key]:.1%}"
        if key.endswith("accuracy")
        else f"{look[key]:,.3f}"
        if key == "mlm_loss"
        else f"{look[key]:,.1f}"
    )


def _fill_mask(filled: Sequence[Filled]) -> str:
    right = sum(one.truth_rank == 1 for one in filled)
    near = sum(one.truth_rank <= len(one.guesses) for one in filled)
    lines = [
        f"## Fill-mask\n\nA word of each of {len(filled)} held-out sentences, chosen at random: {right} right at the first "
        f"guess, {near} among the {len(filled[0].guesses)} shown.\n"
    ]
    lines += [f"{number}. {_gap(one)}" for number, one in enumerate(filled, 1)]
    return "\n".join(lines) + "\n"


def _gap(one: Filled) -> str:
    guesses = [
        f"**{escaped(piece)}** {share:.0%}" if piece == one.truth else f"{escaped(piece)} {share:.0%}"
        for piece, share in one.guesses
    ]
    missed = (
        ""
        if one.truth_rank <= len(one.guesses)
        else f" · … · **{escaped(one.truth)}** at place {one.truth_rank:,}"
    )
    text = escaped(one.text).replace(escaped("[MASK]"), "**\\_\\_\\_\\_**")
    return f"{text}  \n   {' · '.join(guesses)}{missed}"
