"""Pretraining, from a prepared corpus to the report: what `bert-pretrain` does."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.weight_files import has_weights
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.files import file_sha256
from bert.tokenizer import Tokenizer
from training.corpus.shards import INDEX, Corpus
from training.engine.checkpoints import require_writable
from training.engine.distributed import Processes, pick_device, processes
from training.engine.records import LOG, read_lines
from training.pretraining.data import Batches, held_out_examples, masking
from training.pretraining.examples import stream
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.new_model import PUBLISHED, new_config, with_longer_texts
from training.pretraining.objectives import build
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.replaced_token import GENERATOR
from training.pretraining.settings import PAIR_LABELS, PretrainSettings
from training.pretraining.trainer import PretrainTrainer, make_loop
from training.report.pretraining import PretrainReport, run_report, write_report

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
logger = logging.getLogger(__name__)


def pretrain(settings: PretrainSettings, command: str = "") -> Path:
    """Run from the corpus to the report; return the folder of the model.

    Raises DataError, ConfigError and TrainingError with what to do, RunStopped at SIGTERM or Ctrl-C, after a save.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with processes(settings.device) as group:
        return _pretrain(settings, command, group)


def _pretrain(settings: PretrainSettings, command: str, group: Processes) -> Path:
    require_writable(settings.output_dir)
    corpus = Corpus.open(settings.corpus)
    special = SpecialIds.load(corpus.folder)
    torch.manual_seed(settings.seed)  # the same fresh weights in every process
    objective = make_objective(settings, corpus, special)
    mask = masking(settings, corpus, special)
    loop = make_loop(settings, objective, Batches(settings, corpus, mask, group), group)
    held_out = held_out_examples(settings, corpus, mask)
    trainer = PretrainTrainer(settings, objective, loop, corpus, held_out, fingerprint(settings))
    trainer.run()
    folder = settings.output_dir / "model"
    weights = trainer.save_model(folder, command)
    if group.leads:
        report = _report(settings, corpus, held_out, objective, weights, command)
        with trainer.store.writing(settings.output_dir / "report"):
            page = write_report(settings.output_dir / "report", report)
        print(f"report: {page}\ncheckpoint: {folder}", file=sys.stderr)
    return folder


def _report(
    settings: PretrainSettings,
    corpus: Corpus,
    held_out: list[MaskedExample],
    trained: Objective,
    weights: dict[str, Tensor],
    command: str,
) -> PretrainReport:
    """Make the report; the model that fills in masks for it is a whole one, also where the trained one is in parts."""
    objective = build(settings, trained.model.config, trained.generator_shape)
    objective.load_state_dict(weights, strict=False)  # tied weights have one name here and two there
    return run_report(
        f"{settings.objective} on {settings.corpus.name}",
        read_lines(settings.output_dir / LOG),
        objective.to(pick_device(settings.device)),
        corpus,
        held_out,
        command=command,
        settings=settings.model_dump(mode="json"),
    )


def make_objective(settings: PretrainSettings, corpus: Corpus, special: SpecialIds) -> Objective:
    """Build the objective around a fresh model, or around the base that the settings name."""
    if settings.distillation is not None:
        _check_pieces(corpus, resolve_base(settings.distillation.teacher))
    if settings.base is None:
        return build(settings, new_config(settings.model, corpus.vocab_size, special.pad))
    folder = resolve_base(settings.base)
    config = with_longer_texts(BertConfig.read(folder), settings.model)
    _check_pieces(corpus, folder)
    if corpus.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{settings.corpus} was prepared with {corpus.vocab_size} pieces and {settings.base} has {config.vocab_size}: "
            "they do not belong together"
        )
    config.check_fits(corpus.vocab_size, settings.longest)
    generator = _generator(folder, settings)
    if generator is not None:
        generator.check_fits(corpus.vocab_size, settings.longest)
    objective = build(settings, _as_trained(config, settings), generator)
    if fresh := objective.load_base(folder):
        logger.warning(
            "%s lacks %s: what is missing starts from fresh weights", settings.base, ", ".join(fresh)
        )
    return objective


def _as_trained(config: BertConfig, settings: PretrainSettings) -> BertConfig:
    """Return the config of a base with the run's dropout: its own family's, or a BERT's where the heads are BERT's.

    Raises ConfigError where a file of BERT cannot hold the body, and the objective has heads that the family has not.
    """
    family, plain = config.family, config.is_plain_body and config.mlm_act == config.hidden_act
    pairs = tuple(PAIR_LABELS) if family.has_pair_head else ()
    known = ("mlm", *pairs, *(("replaced_token",) if family.discriminator else ()), "distillation")
    stays = settings.objective in known
    if not plain and not stays:
        raise ConfigError(
            f"{settings.base} is {config.model_type!r}, whose body is not BERT's: it goes on with the objective "
            f"{' or '.join(map(repr, known))}, and not with {settings.objective!r}"
        )
    own = _with_dropout(config, settings)
    return own if stays else replace(own, classifier_dropout=None, qa_dropout=0.0, model_type="bert")


def _with_dropout(config: BertConfig, settings: PretrainSettings) -> BertConfig:
    shape = settings.model
    # The dropout of families whose own is none, which is not the default here, changes only where it is asked for.
    own = PUBLISHED.get(config.model_type, {})
    rates = {name for name in DROPOUT if name in shape.model_fields_set or name not in own}
    return replace(config, **shape.model_dump(include=rates))


def _generator(base: Path, settings: PretrainSettings) -> BertConfig | None:
    """Return the shape of the generator beside a base, with the run's dropout; None where there is none to go on."""
    folder = base / GENERATOR
    if settings.objective != "replaced_token" or not has_weights(folder):
        return None
    return _with_dropout(BertConfig.read(folder), settings)


def _check_pieces(corpus: Corpus, folder: Path) -> None:
    """Raise ConfigError where a model's ids mean other pieces than the corpus'. One without a tokenizer is believed."""
    try:
        theirs = Tokenizer.load(folder)
    except CheckpointError:
        return
    ours = Tokenizer.load(corpus.folder)
    both = (i for i in range(ours.highest_id() + 1) if ours.has_id(i) and theirs.has_id(i))
    differing = next((i for i in both if ours.id_to_token(i) != theirs.id_to_token(i)), None)
    if differing is not None:
        raise ConfigError(
            f"{corpus.folder} was prepared with another vocabulary than {folder} has: piece {differing} is "
            f"{ours.id_to_token(differing)!r} there and {theirs.id_to_token(differing)!r} here; prepare it with --tokenizer "
            f"{folder}"
        )


def fingerprint(settings: PretrainSettings) -> dict[str, object]:
    """Return what a resumed run cannot change, unlike its length and rhythm: settings, and the very corpus."""
    free = {
        "config", "recipe", "output_dir", "corpus", "threads", "resume", "max_steps", "max_minutes", "data_workers",
        "save_every_steps", "save_every_minutes", "keep_checkpoints", "eval_every_steps", "eval_examples",
        "compile", "activation_checkpointing", "sharding", "microbatch_size", "device",
        "learning_rate", "max_grad_norm",  # what to change when a run diverges
    }  # fmt: skip
    fixed = settings.model_dump(mode="json", exclude=free)
    return fixed | {"order_of_examples": stream.ORDER, "corpus": file_sha256(settings.corpus / INDEX)}
