"""A pretraining run around its steps: evaluations on held-out text, warnings, the model at the end."""

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bert.files import atomic_dir
from bert.nn.checkpoint import save_weights
from bert.nn.encoder import LayerStack, recompute_activations
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.engine import optim
from training.engine.checkpoints import CheckpointStore
from training.engine.device import StepNumbers, uses_bf16
from training.engine.distributed import Processes, data_parallel, shard
from training.engine.state import gather_weights
from training.engine.train_loop import TrainLoop
from training.engine.trainer import CHECKPOINTS, Trainer
from training.pretraining.data import Batches
from training.pretraining.examples.base import MaskedExample
from training.pretraining.health import HealthMonitor
from training.pretraining.mfu import Utilisation, matmul_peak
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings
from training.pretraining.validation import evaluate, unigram_entropy


def make_loop(
    settings: PretrainSettings, objective: Objective, data: Batches, processes: Processes
) -> TrainLoop:
    """Place the model, wrap it for its processes, and make its optimiser and loop."""
    trained = _joined(objective.to(processes.device), settings, processes)
    optimizer = optim.optimizer(
        optim.trainable(objective),
        rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        epsilon=settings.adam_epsilon,
        beta2=settings.adam_beta2,
        name=settings.optimizer,
        decay_all=settings.decay_all,
    )
    return TrainLoop(
        objective,
        trained,
        optimizer,
        data,
        data.plan,
        settings,
        processes,
        seeds_steps=True,
        bias_correction=settings.bias_correction,
    )


def compile_parts(objective: Objective, **options: Any) -> None:
    """Compile each layer, and each head with its loss; `options` are those of torch.compile."""
    # Apart: how many positions are masked changes with every batch, and only heads see it.
    for layers in [module for module in objective.modules() if isinstance(module, LayerStack)]:
        for layer in layers.layer:
            layer.compile(dynamic=None, **options)
    objective.compile_heads(**options)


def _joined(objective: Objective, settings: PretrainSettings, processes: Processes) -> nn.Module:
    """Return the module whose forward pass trains: compiled, recomputing activations, joined with other processes."""
    if settings.activation_checkpointing:
        recompute_activations(objective)
    if settings.compile:
        compile_parts(objective)
    if processes.world == 1 or settings.sharding == "none":
        return data_parallel(objective, processes)
    from torch.distributed.fsdp import register_fsdp_forward_method  # takes a second

    bf16 = uses_bf16(settings.precision, processes.device)
    shard(objective, objective.model.bert.encoder.layer, bf16=bf16)
    register_fsdp_forward_method(objective, "logits")  # held-out text is scored by these, past `forward`
    return objective


class PretrainTrainer(Trainer):
    """The trainer of a masked language model and its relatives."""

    def __init__(
        self,
        settings: PretrainSettings,
        objective: Objective,
        loop: TrainLoop,
        corpus: Corpus,
        held_out: list[MaskedExample],
        fingerprint: dict[str, object],
    ) -> None:
        """Resume from the newest checkpoint if there is one and the settings ask for it."""
        self.settings, self.objective, self.held_out = settings, objective, held_out
        self.tokenizer = Tokenizer.load(corpus.folder)
        store = CheckpointStore(settings.output_dir / CHECKPOINTS, settings.keep_checkpoints)
        super().__init__(loop, store, settings.output_dir, fingerprint, resume=settings.resume)
        self.last_scores: dict[str, float] | None = None
        self._saved_at_s = time.monotonic()
        dtype = torch.bfloat16 if loop.bf16 else torch.float32
        # All processes are taken to have the same device.
        peak = matmul_peak(loop.device, dtype) * loop.processes.world
        self._utilisation = Utilisation(objective, settings.masking.rate, peak)
        self._phase = loop.state.position.get("phase", 0)
        names = objective.weights
        self._monitor = HealthMonitor(
            # A distillation without the words themselves has no loss to compare with a blind guess.
            corpus.vocab_size if len(names) == 1 or "mlm" in names else math.inf,
            warmup_ratio=settings.warmup_ratio,
            total_steps=settings.max_steps,
            unigram_entropy=unigram_entropy(held_out) or None,
        )

    def due(self, step: int) -> tuple[bool, bool]:
        """Evaluate and save every few steps and at the end; save by the clock too."""
        settings, ended = self.settings, self.loop.is_over
        if self.loop.saving:
            self._saved_at_s = time.monotonic()
        if settings.save_every_minutes and self.processes.leads:
            due_s = self._saved_at_s + 60 * settings.save_every_minutes
            # All processes hear of the clock with the next step.
            self.loop.save_asked = time.monotonic() >= due_s
        evaluate = ended or _divides(settings.eval_every_steps, step)
        return evaluate and bool(self.held_out), ended or _divides(settings.save_every_steps, step)

    def on_step(self, numbers: StepNumbers) -> None:
        """Record a step and what looks wrong; every process watches, so that all end at a loss that is no number."""
        if self._phase != (phase := numbers.position.get("phase", 0)):
            self._phase = phase
            self._monitor.restart()
        values = dict(numbers)
        values["mfu"] = self._utilisation.share(values["tokens_per_second"], values.pop("mean_length"))
        self.records.step(values, numbers.seconds)
        loss, step = values.get("loss_mlm", values["loss"]), int(values["step"])
        if warning := self._monitor.check(step, loss, values["grad_norm"], numbers.done):
            self.records.warn(step, warning)

    def evaluate(self) -> bool:
        """Score held-out text; never end the run by it."""
        scores = evaluate(
            self.objective, self.held_out, self.tokenizer.pad_id, self.processes, bf16=self.loop.bf16
        )
        self.last_scores = scores
        if scores:  # left to right: no head tells masked words
            self.records.evaluation(self.loop.state.step, {"held_out": scores})
        return False

    def finish(self) -> None:
        """Score the held-out text if this start has not: a resumed run may have been over already."""
        if self.held_out and self.last_scores is None:
            self.evaluate()

    def save_model(self, folder: Path, command: str) -> dict[str, Tensor]:
        """Write the model as a checkpoint of the ecosystem's format; return all weights, whole and on the CPU.

        Every process must call it; only the leader gets the weights.
        """
        weights = gather_weights(self.objective, keep=self.processes.leads)
        if self.processes.leads:
            with self.store.writing(folder):
                self._write_model(folder, weights, command)
        self.processes.wait()
        return weights

    def _write_model(self, folder: Path, weights: dict[str, Tensor], command: str) -> None:
        """Write `config.json`, `model.safetensors`, the tokenizer, and `pretrain.json` with settings and scores."""
        objective = self.objective
        recipe = {
            "command": command,
            "scores": self.last_scores or {},
            "settings": self.settings.model_dump(mode="json"),
        }
        with atomic_dir(folder) as aside:
            model, shape = objective.model_weights(weights), objective.model.config
            ids = shape.family.special_ids(self.tokenizer.cls_id, self.tokenizer.sep_id)
            save_weights(model, shape, aside, objective.architecture, ids)
            for place in (aside, *objective.save_beside(aside, weights, ids)):
                self.tokenizer.save(
                    place, segments=shape.has_segments, max_tokens=shape.max_position_embeddings
                )
            (aside / "pretrain.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")


def _divides(every: int, step: int) -> bool:
    return bool(every) and step % every == 0
