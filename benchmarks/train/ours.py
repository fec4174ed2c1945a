"""The loops of bert-finetune and bert-pretrain, without evaluations and saves."""

import time
from argparse import Namespace
from pathlib import Path

import torch

from benchmarks.train.tasks import (
    BATCH_SIZE,
    LEARNING_RATE,
    MAX_TOKENS,
    Mark,
    finetune_settings,
    model_of,
    read_source,
)
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.engine.distributed import Processes, pick_device
from training.engine.train_loop import TrainLoop
from training.finetune import make_spec
from training.finetuning import loop as finetuning
from training.finetuning import model as models
from training.finetuning.batches import Dataset
from training.finetuning.recipe import LinearSchedule
from training.labelled.sources import find_labels
from training.pretrain import make_objective
from training.pretraining import trainer as pretraining
from training.pretraining.data import Batches, masking
from training.pretraining.examples.base import SpecialIds
from training.pretraining.new_model import ModelSettings
from training.pretraining.settings import MaskingSettings, PretrainSettings
from training.tasks import make_task
from training.tasks.base import Feature, FinetuneTask


def train(options: Namespace, folder: Path) -> list[Mark]:
    """Train on the task for `options.steps` steps; pretraining compiled with `options.compile`."""
    torch.manual_seed(42)
    return _pretrain(options, folder) if options.tasks[0] == "mlm" else _finetune(options)


def features(options: Namespace) -> tuple[FinetuneTask, list[Feature]]:
    """Return the task and what it trains on: one feature a text or window."""
    settings = finetune_settings(options)
    source = read_source(options, settings)
    tokenizer = Tokenizer.load(models.base_folder(settings.base))
    spec = make_spec(settings, [source], find_labels(settings, [source]), "")
    task = make_task(settings, tokenizer, spec)
    return task, task.features(source.examples)


def _finetune(options: Namespace) -> list[Mark]:
    settings = finetune_settings(options)
    task, made = features(options)
    _, trained = models.build(settings, task)
    data = Dataset(made, [len(made)], [1.0])
    schedule, alone = LinearSchedule.over(data, settings), Processes(0, 1, pick_device(settings.device))
    return _marks(finetuning.make_loop(settings, task, trained, data, schedule, alone))


def _pretrain(options: Namespace, folder: Path) -> list[Mark]:
    settings = PretrainSettings(
        corpus=options.corpus,
        output_dir=folder,
        objective="mlm",
        examples="full_sentences",
        masking=MaskingSettings(),
        model=ModelSettings(**model_of(options)),
        max_tokens=MAX_TOKENS["mlm"],
        batch_size=options.batch or BATCH_SIZE["mlm"],
        learning_rate=LEARNING_RATE["mlm"],
        warmup_ratio=0.0,
        max_steps=options.steps,
        precision=options.precision,
        compile=options.compile,
    )
    corpus, special = Corpus.open(options.corpus), SpecialIds.load(options.corpus)
    alone = Processes(0, 1, pick_device("auto"))
    batches = Batches(settings, corpus, masking(settings, corpus, special), alone)
    return _marks(pretraining.make_loop(settings, make_objective(settings, corpus, special), batches, alone))


def _marks(loop: TrainLoop) -> list[Mark]:
    return [Mark(time.perf_counter(), int(numbers["tokens"]), numbers["loss"]) for numbers in loop.steps()]
