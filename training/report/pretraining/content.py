"""What the report of a pretraining run is made of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from training.pretraining.fill_mask import Filled
from training.report.content import CURVE_POINTS, training_summary


@dataclass(frozen=True)
class PretrainReport:
    """All that a report says of one run.

    `history`: {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second", "mfu"?, "loss_NAME"?} a step, tokens
    from the start of the run. `looks`: {"step", "mlm_loss"?, "mlm_accuracy"?, "perplexity"?, "pair_accuracy"?} a look
    at held-out text.
    """

    title: str
    history: Sequence[Mapping[str, float]]
    looks: Sequence[Mapping[str, float]] = ()
    filled: Sequence[Filled] = ()
    warnings: Sequence[str] = ()
    """What the watch said."""
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    """Of model, corpus and machine, for people: {"parameters": "13.8 million", ...}."""
    log_vocab: float | None = None
    """Loss of a blind guess, nats."""
    unigram_entropy: float | None = None
    """Loss of one who knows how frequent words are and nothing else, nats."""


def split_log(
    lines: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, float]], list[dict[str, float]], list[str]]:
    """Return history, looks and warnings from the lines of log.jsonl.

    A step's line is its numbers; a look's is {"step", "held_out": {...}}, a warning's {"step", "warning": text}.
    """
    history: list[dict[str, float]] = []
    looks: list[dict[str, float]] = []
    warnings: list[str] = []
    for line in lines:
        if "held_out" in line:
            looks.append({"step": line["step"], **line["held_out"]})
        elif "warning" in line:
            warnings += line["warning"].splitlines()
        else:
            history.append(dict(line))
    return history, looks, warnings


def language_loss(history: Sequence[Mapping[str, float]]) -> str:
    """Return which number of the history is the masked words' loss: the total where it is the only one."""
    return "loss_mlm" if history and "loss_mlm" in history[0] else "loss"


def summary(report: PretrainReport) -> dict[str, float]:
    """Return steps, tokens, seconds of training, tokens a second, the last tenth's mean loss and mean MFU."""
    found = training_summary(report.history)
    shares = [point["mfu"] for point in report.history[len(report.history) // 10 :] if "mfu" in point]
    return {**found, "mfu": round(sum(shares) / len(shares), 4)} if shares else found


def as_json(report: PretrainReport) -> dict[str, Any]:
    """Return the content of report.json; of the history evenly spaced steps."""
    every = max(1, -(-len(report.history) // CURVE_POINTS))
    return {
        "title": report.title,
        "command": report.command,
        "training": summary(report),
        "held_out": dict(report.looks[-1]) if report.looks else {},
        "log_vocab": report.log_vocab,
        "unigram_entropy": report.unigram_entropy,
        "facts": dict(report.facts),
        "warnings": list(report.warnings),
        "fill_mask": [asdict(filled) for filled in report.filled],
        "looks": [dict(look) for look in report.looks],
        "history": [dict(point) for point in report.history[::every]],
        "settings": dict(report.settings),
    }
