"""Tokens a second and MFU of pretraining and fine-tuning, by the loops that the commands run."""

import csv
import multiprocessing
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.padded_torch import synchronise
from benchmarks.engine.shapes import flops
from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.checkpoints import shape, write_shape
from benchmarks.gpu_check.corpus import write_corpus
from benchmarks.gpu_check.records import Row
from benchmarks.gpu_check.sections.parity import NARROW
from benchmarks.serve.load.texts import Kinds, made_up_texts
from bert.nn import attention
from bert.tokenizer import Tokenizer
from service.cpu_count import usable_cores
from training.core.distributed import Processes, pick_device
from training.core.train_loop import TrainLoop
from training.corpus.shards import Corpus
from training.data.datasets import find_labels, read_training
from training.data_file import DataFile
from training.finetune import make_spec
from training.finetuning import model as models
from training.finetuning import trainer as finetuning
from training.finetuning.batches import Dataset, LinearSchedule
from training.pretrain import make_objective
from training.pretraining import trainer as pretraining
from training.pretraining.data import Batches, masking
from training.pretraining.examples.base import SpecialIds
from training.pretraining.mfu import PASSES, Utilisation, matmul_peak
from training.pretraining.new_model import ModelSettings
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings
from training.tasks.registry import make_task

VOCABULARY = 30_528
"""Rows of BERT's table of words, rounded up to a multiple of 64; the made-up texts have fewer pieces."""
MANY_STEPS = 100_000
"""More than any run here takes."""
WARM_STEPS = 5
MAX_WORKERS = 12
"""Most processes that make batches of pretraining."""
SENTENCES: Kinds = ((1.0, 4, 28),)
PARAGRAPHS: Kinds = ((1.0, 200, 400),)


@dataclass(frozen=True, slots=True)
class Pretraining:
    """A form of pretraining."""

    tokens: int
    batch: int
    varlen: bool
    compiled: bool

    @property
    def name(self) -> str:
        """Return its name in the report."""
        how = "varlen" if self.varlen else "mask"
        return f"pretraining, {how}{', compiled' if self.compiled else ''}"


RUNS = (
    Pretraining(512, 128, varlen=True, compiled=False),
    Pretraining(512, 128, varlen=False, compiled=False),
    Pretraining(128, 512, varlen=True, compiled=False),
    Pretraining(512, 128, varlen=True, compiled=True),
    Pretraining(512, 128, varlen=False, compiled=True),
    Pretraining(128, 512, varlen=True, compiled=True),
)
SMALL_RUNS = (
    Pretraining(32, 4, varlen=True, compiled=False),
    Pretraining(32, 4, varlen=False, compiled=False),
)
FINETUNING: dict[str, tuple[Kinds, int, int]] = {
    "fine-tuning, sentences": (SENTENCES, 128, 32),
    "fine-tuning, sentences, large batch": (SENTENCES, 128, 256),
    "fine-tuning, paragraphs": (PARAGRAPHS, 384, 32),
}
"""Name → texts, longest text in tokens, texts a step."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed and loss of a run of steps."""

    tokens_per_s: float
    mean_length: float
    steps: int
    first_s: float
    """Seconds of the steps that are not counted, compilation among them."""
    loss: float


def run(check: Check) -> None:
    """Measure pretraining first, then fine-tuning, then what has to be compiled."""
    dtype = torch.bfloat16 if check.on_gpu else torch.float32
    peak = matmul_peak(torch.device(check.device), dtype)
    check.record.note(
        f"BERT-base; a large {str(dtype).removeprefix('torch.')} product: {peak / 1e12:.2f} TFLOP/s."
    )
    # Workers are forked from a process that has imported torch once.
    multiprocessing.set_forkserver_preload(["training.pretraining.data"])
    corpus = write_corpus(check.folder / "corpus", check.pick(8000, 40))
    runs = check.pick(RUNS, SMALL_RUNS)
    for chosen in (each for each in runs if not each.compiled):
        _pretrain(check, corpus, chosen, peak)
    for name, (kinds, tokens, batch) in list(FINETUNING.items())[: check.pick(3, 1)]:
        with check.record.step(name):
            _finetune(check, name, kinds, tokens, batch, peak)
    for chosen in (each for each in runs if each.compiled):
        _pretrain(check, corpus, chosen, peak)


def _pretrain(check: Check, corpus: Path, chosen: Pretraining, peak: float) -> None:
    options: Mapping[str, Any] = attention._VARLEN_OPTIONS
    with check.record.step(f"{chosen.name}, {chosen.tokens} tokens"):
        try:
            if not chosen.varlen:
                vars(attention)["_VARLEN_OPTIONS"] = {}  # as with a torch that has no such kernel
            _measure_pretraining(check, corpus, chosen, peak)
        finally:
            vars(attention)["_VARLEN_OPTIONS"] = options
            if chosen.compiled:
                torch.compiler.reset()


def _measure_pretraining(check: Check, folder: Path, chosen: Pretraining, peak: float) -> None:
    settings = PretrainSettings(
        corpus=folder,
        output_dir=check.folder / "unused",
        objective="mlm",
        examples="full_sentences",
        model=ModelSettings(**model_values(check)),
        max_tokens=chosen.tokens,
        batch_size=chosen.batch,
        max_steps=MANY_STEPS,
        warmup_ratio=0.0,
        device=check.device,
        data_workers=check.pick(min(MAX_WORKERS, max(1, usable_cores() - 2)), 0),
        compile=chosen.compiled,
    )
    torch.manual_seed(settings.seed)
    corpus, special = Corpus.open(folder), SpecialIds.load(folder)
    objective = make_objective(settings, corpus, special)
    alone = Processes(0, 1, pick_device(check.device))
    batches = Batches(settings, corpus, masking(settings, corpus, special), alone)
    loop = pretraining.make_loop(settings, objective, batches, alone)
    _forget_memory(check)
    try:
        speed = timed(loop, check.pick(5.0, 0.2))
    finally:
        batches.close()
    utilisation = Utilisation(objective, settings.masking.rate, peak)
    mfu = utilisation.share(speed.tokens_per_s, speed.mean_length)
    hidden = torch.empty(1, 1, objective.model.config.hidden_size, device=check.device)
    with torch.autocast(check.device, torch.bfloat16, enabled=loop.bf16):
        kernel = attention.knows_texts(hidden, objective.model.config, training=True)
    _row(check, chosen.name, chosen.tokens, chosen.batch, speed, mfu, {"varlen kernel": kernel})


def model_values(check: Check) -> dict[str, Any]:
    """Return BERT-base without dropout of attention, which varlen attention does not know; or a tiny model."""
    if check.small:
        narrow = {**NARROW, "max_position_embeddings": 64}
        return {**narrow, "attention_probs_dropout_prob": 0.0}
    return {"vocab_multiple": VOCABULARY, "attention_probs_dropout_prob": 0.0}


def timed(loop: TrainLoop, seconds: float) -> Speed:
    """Take steps for so long, after the first ones. The device is not waited for in between."""
    began, taken, lengths = time.perf_counter(), 0, list[float]()
    start, tokens = began, 0
    device = loop.device.type
    for numbers in loop.steps():
        taken += 1
        lengths.append(numbers.known["mean_length"])
        if taken == WARM_STEPS:
            synchronise(device)
            start, tokens = time.perf_counter(), loop.progress.tokens
        if taken > WARM_STEPS and time.perf_counter() - start > seconds:
            break
    synchronise(device)
    end = time.perf_counter()
    rate = (loop.progress.tokens - tokens) / (end - start)
    return Speed(rate, sum(lengths) / len(lengths), taken - WARM_STEPS, start - began, numbers["loss"])


def _finetune(check: Check, name: str, kinds: Kinds, tokens: int, batch: int, peak: float) -> None:
    base = shape("bert", **check.pick({"vocab_size": VOCABULARY}, {**NARROW, "vocab_size": 400}))
    folder = write_shape(check.folder / "base", base)
    texts = made_up_texts(check.pick(6000, 100), mixture=kinds)
    data = _write_texts(check.folder / f"{tokens}-{batch}.csv", texts)
    settings = FinetuneSettings(
        task="classification",
        base=f"random:{folder}",
        output_dir=check.folder / "unused",
        train=[DataFile(path=data)],
        batch_size=check.pick(batch, 8),
        max_tokens=tokens,
        epochs=100,
        learning_rate=1e-5,
        device=check.device,
    )
    torch.manual_seed(settings.seed)
    (source,) = read_training(settings)
    spec = make_spec(settings, [source], find_labels(settings, [source]), "")
    task = make_task(settings, Tokenizer.load(folder), spec)
    features = task.features(source.examples)
    model, trained = models.build(settings, task)
    dataset = Dataset(features, [len(features)], [1.0])
    schedule, alone = LinearSchedule.over(dataset, settings), Processes(0, 1, pick_device(check.device))
    loop = finetuning.make_loop(settings, task, trained, dataset, schedule, alone)
    _forget_memory(check)
    speed = timed(loop, check.pick(4.0, 0.2))
    encodings = [feature.encodings[0] for feature in features]
    a_token = PASSES * flops(model.config, encodings) / sum(map(len, encodings))
    _row(check, name, tokens, settings.batch_size, speed, speed.tokens_per_s * a_token / peak)


def _write_texts(file: Path, texts: Iterable[str]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        writer.writerows((text, "even" if number % 2 else "odd") for number, text in enumerate(texts))
    return file


def _forget_memory(check: Check) -> None:
    if check.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _row(
    check: Check, name: str, tokens: int, batch: int, speed: Speed, mfu: float, more: Row | None = None
) -> None:
    memory = {"GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if check.on_gpu else {}
    check.record.row(
        "training",
        run=name,
        **{
            "longest": tokens,
            "batch": batch,
            "tokens/s": round(speed.tokens_per_s),
            "MFU": round(mfu, 4),
            "steps": speed.steps,
            "first steps, s": round(speed.first_s, 1),
            "loss": round(speed.loss, 3),
            **memory,
            **(more or {}),
        },
    )
