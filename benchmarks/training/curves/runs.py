"""One run of a recipe on either side, and what is kept of it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.training.curves import ours
from benchmarks.training.curves.theirs import Run, TheirLoop
from bert.files import atomic_write
from training.core.records import LOG, read_lines
from training.corpus.shards import Corpus
from training.pretrain import pretrain
from training.pretraining.data import held_out_examples, masking
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.settings import PretrainSettings
from training.pretraining.validation import evaluate


@dataclass(frozen=True)
class Curve:
    """The numbers of one run."""

    losses: list[float]
    """Training loss of each step."""
    held_out: dict[int, float]
    """Step → mean loss of masked words on held-out text, in nats; step 0 is the start."""

    @property
    def last_losses(self) -> float:
        """Mean training loss of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)

    @classmethod
    def read(cls, file: Path) -> "Curve":
        """Read a kept run."""
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(values["losses"], {int(step): loss for step, loss in values["held_out"].items()})

    def write(self, file: Path) -> "Curve":
        """Keep the run."""
        atomic_write(file, json.dumps(asdict(self)) + "\n")
        return self


def run_ours(settings: PretrainSettings) -> Curve:
    """Train with `bert-pretrain`'s own function, and read its log."""
    objective = ours.fresh_objective(settings)
    start = evaluate(objective, held_out(settings), special_ids(settings).pad).mlm_loss
    pretrain(settings)
    lines = list(read_lines(settings.output_dir / LOG))
    scores = {0: start} | {
        line["step"]: line["held_out"].get("mlm_loss") for line in lines if "held_out" in line
    }
    known = {step: loss for step, loss in scores.items() if loss is not None}
    return Curve([line["loss"] for line in lines if "loss" in line], known)


def run_theirs(recipe: str, settings: PretrainSettings, start: Path) -> Curve:
    """Train transformers' modules from the weights that ours starts from, on the same examples."""
    ours.save(ours.fresh_objective(settings), start)
    warmup = round(settings.warmup_ratio * settings.max_steps)
    run = Run(settings.max_steps, settings.learning_rate, warmup, special_ids(settings).pad)
    loop, examples = TheirLoop.start(recipe, run, start), held_out(settings)
    torch.manual_seed(settings.seed)
    scores, losses = {0: loop.held_out_loss(examples)}, []
    for step, loss in enumerate(loop.steps(ours.batches(settings)), 1):
        losses.append(loss)
        if step % settings.eval_every_steps == 0 or step == settings.max_steps:
            scores[step] = loop.held_out_loss(examples)
    return Curve(losses, {step: loss for step, loss in scores.items() if loss is not None})


def special_ids(settings: PretrainSettings) -> SpecialIds:
    """Return the special ids of the corpus."""
    return SpecialIds.load(Corpus.open(settings.corpus).tokenizer_folder)


def held_out(settings: PretrainSettings) -> list[MaskedExample]:
    """Return the held-out examples, 15% of whose tokens are masked plainly whatever the recipe."""
    corpus = Corpus.open(settings.corpus)
    return held_out_examples(settings, corpus, masking(settings, corpus, special_ids(settings)))
