"""From a finished run to its report: the log that it wrote, its model, its corpus, its machine."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from bert.config import BertConfig
from bert.processor import instructions, processor_name
from bert.tokenizer import Tokenizer
from training.corpus.shards import Corpus
from training.pretraining.examples.base import MaskedExample
from training.pretraining.fill_mask import Filled, fill, gaps
from training.pretraining.objectives.base import Objective
from training.pretraining.validation import unigram_entropy
from training.report.pretraining.content import PretrainReport, split_log

SENTENCES = 20


def run_report(
    title: str,
    log: Iterable[Mapping[str, Any]],
    objective: Objective,
    corpus: Corpus,
    held_out: Sequence[MaskedExample] = (),
    *,
    command: str = "",
    settings: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> PretrainReport:
    """Put a report together. `log` are the lines of log.jsonl; `facts` of the run go before those found here.

    The model is asked to fill in masked words, on its own device and by this process alone: under FSDP give an
    objective that is whole.
    """
    config, device = objective.model.config, next(objective.parameters()).device
    history, looks, warnings = split_log(log)
    return PretrainReport(
        title=title,
        history=history,
        looks=looks,
        warnings=warnings,
        filled=_filled(objective, corpus),
        command=command,
        settings=settings or {},
        facts={
            **model_facts(objective, config),
            **corpus_facts(corpus),
            **(facts or {}),
            **machine_facts(device),
        },
        log_vocab=math.log(corpus.vocab_size),
        unigram_entropy=unigram_entropy(held_out) or None,
    )


def model_facts(objective: Objective, config: BertConfig) -> dict[str, str]:
    """Return the model's shape and size, for people."""
    count = sum(parameter.numel() for parameter in objective.model.parameters())
    return {
        "layers": f"{config.num_hidden_layers}, {config.hidden_size} wide",
        "attention heads": str(config.num_attention_heads),
        "parameters": f"{count / 1e6:,.1f} million",
        "vocabulary": f"{config.vocab_size:,}",
    }


def corpus_facts(corpus: Corpus) -> dict[str, str]:
    """Return how large the corpus is, for people."""
    splits = corpus.info["splits"]
    sizes = [f"{split['tokens']:,} tokens in {split['documents']:,} documents" for split in splits.values()]
    return {"corpus": "; ".join(f"{name}: {size}" for name, size in zip(splits, sizes, strict=True))}


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return what the run ran on, for people."""
    is_gpu = device.type == "cuda"
    cpu = f"{processor_name()} ({instructions()}), threads: {torch.get_num_threads()}"
    name = torch.cuda.get_device_name(device) if is_gpu else cpu
    return {"machine": f"{name}; torch {torch.__version__}"}


def _filled(objective: Objective, corpus: Corpus) -> list[Filled]:
    tokenizer = Tokenizer.load(corpus.tokenizer_folder)
    positions = objective.model.config.max_position_embeddings
    return fill(objective, tokenizer, gaps(corpus, tokenizer, SENTENCES, most_pieces=positions - 2))
