"""This project's side: the settings of a run, the weights that it starts from, its trainer and its data."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.training.curves.models import REST, TEACHER
from bert.nn.checkpoint import save_checkpoint, save_weights
from bert.nn.heads import BertForMaskedLM
from training.corpus.shards import Corpus
from training.pretrain import make_objective
from training.pretraining.data import masking, stream
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings


def fresh_objective(settings: PretrainSettings) -> Objective:
    """Return what `bert-pretrain` trains, with the weights that it starts from."""
    corpus = Corpus.open(settings.corpus)
    torch.manual_seed(settings.seed)
    return make_objective(settings, corpus, SpecialIds.load(corpus.tokenizer_folder))


def save(objective: Objective, folder: Path) -> Path:
    """Write all weights: the model and what lies beside it as a run does, others to a file of their own."""
    weights = {name: value.detach().clone() for name, value in objective.named_parameters()}
    prefix = "model."
    model = objective.model_weights(weights)
    save_weights(model, objective.model.config, folder, objective.architecture, {})
    objective.save_beside(folder, weights, {})
    for teacher in objective.frozen:
        assert isinstance(teacher, BertForMaskedLM)
        save_checkpoint(teacher, folder / TEACHER, "BertForMaskedLM", {})
    save_file({name: value for name, value in weights.items() if not name.startswith(prefix)}, folder / REST)
    return folder


def batches(settings: PretrainSettings) -> Iterator[list[MaskedExample]]:
    """Yield the examples of each step of a run without phases."""
    corpus = Corpus.open(settings.corpus)
    mask = masking(settings, corpus, SpecialIds.load(corpus.tokenizer_folder))
    examples = stream(settings, corpus, mask, settings.max_tokens, settings.seed)
    return (batch for batch, _ in examples.batches(settings.batch_size))
