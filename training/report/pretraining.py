"""The report of a pretraining run: report.md for people, report.json for programs, and the curves."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from bert.processor import instructions, processor_name
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.engine.progress import format_seconds
from training.engine.records import bounded
from training.pretraining.examples.base import MaskedExample
from training.pretraining.fill_mask import Filled, fill, gaps
from training.pretraining.objectives.base import Objective
from training.pretraining.validation import unigram_entropy
from training.report.page import (
    History,
    escaped,
    opening,
    table,
    thinned,
    training_summary,
    warning_section,
    write_pages,
)
from training.report.plots import Panel, column, draw_panels

SENTENCES = 20
"""Held-out sentences with a masked word that the report shows."""
CURVES = "curves.png"
MEASURES = {
    "mlm_loss": ("loss of masked words, nats", ",.3f"),
    "perplexity": ("perplexity", ",.1f"),
    "mlm_accuracy": ("masked words right", ".1%"),
    "pair_accuracy": ("pairs right (chance 50%)", ".1%"),
}
"""Name of a held-out score → its name for people, and its format."""


@dataclass(frozen=True)
class PretrainReport:
    """Content of the report of one run."""

    title: str
    history: History
    """Numbers of each step; those of pretraining also have "grad_norm", "mfu"? and "loss_NAME"?."""
    evaluations: Sequence[Mapping[str, float]] = ()
    """{"step", "mlm_loss"?, "mlm_accuracy"?, "perplexity"?, "pair_accuracy"?} of each evaluation on held-out text."""
    filled: Sequence[Filled] = ()
    warnings: Sequence[str] = ()
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about model, corpus and machine, for people: {"parameters": "13.8 million", ...}."""
    log_vocab: float | None = None
    """Loss of a blind guess, nats."""
    unigram_entropy: float | None = None
    """Loss of a guess by word frequencies alone, nats."""


def run_report(
    title: str,
    log: Iterable[Mapping[str, Any]],
    objective: Objective,
    corpus: Corpus,
    held_out: Sequence[MaskedExample] = (),
    *,
    command: str = "",
    settings: Mapping[str, Any] | None = None,
) -> PretrainReport:
    """Put a report together from the lines of log.jsonl.

    The model fills in masked words on its own device and in this process alone. Under FSDP give an objective that is
    whole.
    """
    history, evaluations, warnings = split_log(log)
    tokenizer = Tokenizer.load(corpus.folder)
    positions = objective.model.config.max_position_embeddings
    return PretrainReport(
        title=title,
        history=history,
        evaluations=evaluations,
        warnings=warnings,
        filled=fill(objective, tokenizer, gaps(corpus, tokenizer, SENTENCES, max_pieces=positions - 2)),
        command=command,
        settings=settings or {},
        facts=_facts(objective, corpus),
        log_vocab=math.log(corpus.vocab_size),
        unigram_entropy=unigram_entropy(held_out) or None,
    )


def split_log(
    lines: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, float]], list[dict[str, float]], list[str]]:
    """Return history (as `bounded` has it), evaluations and warnings from the lines of log.jsonl, read one by one.

    A step's line is its numbers; an evaluation's is {"step", "held_out": {...}}, a warning's {"step", "warning": text}.
    """
    evaluations: list[dict[str, float]] = []
    warnings: list[str] = []

    def steps() -> Iterator[dict[str, float]]:
        for line in lines:
            if "held_out" in line:
                evaluations.append({"step": line["step"], **line["held_out"]})
            elif "warning" in line:
                warnings.extend(line["warning"].splitlines())
            else:
                yield dict(line)

    return bounded(steps()), evaluations, warnings


def write_report(folder: Path, report: PretrainReport) -> Path:
    """Write the report into `folder`, which is made if needed; return the path of report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    if report.history:
        draw_panels(folder / CURVES, curve_panels(report))
    return write_pages(folder, as_json(report), as_markdown(report))


def curve_panels(report: PretrainReport) -> list[Panel]:
    """Return loss, held-out accuracy, learning rate, gradient norm and speed over steps."""
    # Beside other losses the masked words' has a name of its own.
    name = "loss_mlm" if "loss_mlm" in report.history[0] else "loss"
    loss = [column(report.history, name, "training", every_step=True)]
    loss += [column(report.evaluations, "mlm_loss", "held-out text")]
    levels = {"blind guess": report.log_vocab, "word frequencies": report.unigram_entropy}
    accuracy = [column(report.evaluations, "mlm_accuracy", "masked words")]
    accuracy += [column(report.evaluations, "pair_accuracy", "pairs (chance 50%)")]
    panels = [Panel("loss, nats", loss, levels={key: level for key, level in levels.items() if level})]
    if accuracy := [line for line in accuracy if line.values]:
        panels.append(Panel("right on held-out text", accuracy, (0.0,)))
    speed = column(report.history, "tokens_per_second", "speed", every_step=True)
    return [
        *panels,
        Panel("learning rate", [column(report.history, "lr", "rate")], (0.0,)),
        Panel(
            "gradient norm", [column(report.history, "grad_norm", "norm", every_step=True)], logarithmic=True
        ),
        Panel("tokens a second", [speed], (0.0,)),
    ]


def summary(report: PretrainReport) -> dict[str, float]:
    """Return steps, tokens, seconds of training, tokens a second, the last tenth's mean loss and mean MFU."""
    found = training_summary(report.history)
    shares = [point["mfu"] for point in report.history[len(report.history) // 10 :] if "mfu" in point]
    return {**found, "mfu": round(sum(shares) / len(shares), 4)} if shares else found


def as_json(report: PretrainReport) -> dict[str, Any]:
    """Return the content of report.json."""
    return {
        "title": report.title,
        "command": report.command,
        "training": summary(report),
        "held_out": dict(report.evaluations[-1]) if report.evaluations else {},
        "log_vocab": report.log_vocab,
        "unigram_entropy": report.unigram_entropy,
        "facts": dict(report.facts),
        "warnings": list(report.warnings),
        "fill_mask": [asdict(filled) for filled in report.filled],
        "looks": [dict(evaluation) for evaluation in report.evaluations],
        "history": thinned(report.history),
        "settings": dict(report.settings),
    }


def as_markdown(report: PretrainReport) -> str:
    """Return the content of report.md."""
    parts = opening(report.title, report.command)
    parts.append(table(["run", ""], _fact_rows(report)).replace("---:", "---"))  # words, not numbers
    parts += warning_section(report.warnings)
    if report.evaluations:
        parts.append(_held_out(report))
    if report.history:
        parts.append(
            f"![loss, held-out accuracy, learning rate, gradient norm and speed over steps]({CURVES})\n"
        )
    if report.filled:
        parts.append(_fill_mask(report.filled))
    if report.settings:
        text = yaml.safe_dump(dict(report.settings), sort_keys=False, allow_unicode=True)
        parts.append(f"## Settings\n\n```yaml\n{text}```\n")
    return "\n".join(parts)


def _facts(objective: Objective, corpus: Corpus) -> dict[str, str]:
    """Return shape and size of the model, size of the corpus, and the machine."""
    config, device = objective.model.config, next(objective.parameters()).device
    count = sum(parameter.numel() for parameter in objective.model.parameters())
    sizes = [
        f"{name}: {split['tokens']:,} tokens in {split['documents']:,} documents"
        for name, split in corpus.info["splits"].items()
    ]
    cpu = f"{processor_name()} ({instructions()}), threads: {torch.get_num_threads()}"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return {
        "layers": f"{config.num_hidden_layers}, {config.hidden_size} wide",
        "attention heads": str(config.num_attention_heads),
        "parameters": f"{count / 1e6:,.1f} million",
        "vocabulary": f"{config.vocab_size:,}",
        "corpus": "; ".join(sizes),
        "machine": f"{machine}; torch {torch.__version__}",
    }


def _fact_rows(report: PretrainReport) -> list[list[str]]:
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
    """Return the table of the first and the last evaluation, and the losses to compare with."""
    steps = {f"step {each['step']:,.0f}": each for each in (report.evaluations[0], report.evaluations[-1])}
    rows = [
        [name, *(format(scores[key], shown) if key in scores else "" for scores in steps.values())]
        for key, (name, shown) in MEASURES.items()
        if any(key in scores for scores in steps.values())
    ]
    levels = {"a blind guess": report.log_vocab, "knowing word frequencies alone": report.unigram_entropy}
    given = [f"{name} gives {level:.2f}" for name, level in levels.items() if level]
    compared = f"\nTo compare the loss with: {', '.join(given)}.\n" if given else ""
    return "## Held-out text\n\n" + table(["plain masking of 15% of the tokens", *steps], rows) + compared


def _fill_mask(filled: Sequence[Filled]) -> str:
    right = sum(one.truth_rank == 1 for one in filled)
    near = sum(one.truth_rank <= len(one.guesses) for one in filled)
    opens = (
        f"## Fill-mask\n\nA word of each of {len(filled)} held-out sentences, chosen at random: {right} right at the first "
        f"guess, {near} among the {len(filled[0].guesses)} shown.\n\n"
    )
    return opens + "".join(f"{number}. {_gap(one)}\n" for number, one in enumerate(filled, 1))


def _gap(one: Filled) -> str:
    guesses = [
        f"**{escaped(piece)}** {share:.0%}" if piece == one.truth else f"{escaped(piece)} {share:.0%}"
        for piece, share in one.guesses
    ]
    if one.truth_rank > len(one.guesses):
        guesses += ["…", f"**{escaped(one.truth)}** at place {one.truth_rank:,}"]
    text = escaped(one.text).replace(escaped("[MASK]"), "**\\_\\_\\_\\_**")
    return f"{text}  \n   {' · '.join(guesses)}"
