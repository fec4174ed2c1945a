"""Each recipe's first steps beside the same recipe written with transformers' modules, from the same weights.

The two sides share the examples and nothing else. Dropout is off, so losses and weights must agree.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bert.config import BertConfig
from bert.nn.checkpoint import save_checkpoint, save_weights
from bert.nn.heads import BertForMaskedLM
from tests.support.papers.loop import PAPERS, Run, TheirLoop
from tests.support.papers.models import REST, TEACHER
from tests.support.papers.optimizers import (
    Adam,
    Lamb,
    Schedule,
    StableAdam,
    linear_from_peak,
    linear_from_start,
    trapezoid,
)
from training.corpus.prepare import prepare
from training.corpus.settings import PrepareSettings
from training.corpus.shards import Corpus
from training.engine.distributed import Processes
from training.engine.optim import BETA1
from training.pretrain import make_objective
from training.pretraining.data import Batches, masking, stream
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.objectives import replaced_token
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import make_loop

STEPS = 12
WARMUP = 4
SYLLABLES = ["ba", "de", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu"]
RATE, DECAY = 1e-2, 0.3
"""High, so that a wrong detail of the optimiser shows in a few steps."""
MASKING_FILES = {"macbert": {"vectors": "vectors.npy"}, "ernie": {"phrases": "phrases.txt"}}
"""Files that a recipe's masking asks its user for, in the folder of the data."""
OWN_VOCABULARY = {
    "roberta": "roberta", "modernbert": "modernbert", "albert": "albert", "deberta_v3": "deberta-v2",
}  # fmt: skip
"""Recipe → family of its vocabulary, where that is not BERT's."""
SHAPES = {
    "albert": {"embedding_size": 16}, "electra": {"embedding_size": 16}, "deberta_v3": {"position_buckets": 8},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 8},
}  # fmt: skip
"""Recipe → settings in which its model is smaller than the family's default."""

OPTIMIZERS = {Adam: "adamw", Lamb: "lamb", StableAdam: "stable_adamw"}
SCHEDULES: dict[Schedule, str] = {
    linear_from_peak: "linear",
    linear_from_start: "google",
    trapezoid: "warmup_stable_decay",
}


def made_up_text(documents: int) -> list[str]:
    """Documents of sentences of made-up words of one to four syllables."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(150)]

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(4, 12))).capitalize() + "."

    return [" ".join(sentence() for _ in range(8)) for _ in range(documents)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus for each kind of vocabulary, word vectors and phrases."""
    folder = tmp_path_factory.mktemp("data")
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in made_up_text(60)))
    for family in ("bert", *OWN_VOCABULARY.values()):
        of_corpus: dict[str, Any] = {
            "sources": [str(texts)],
            "output_dir": folder / family,
            "model_type": family,
        }
        prepare(PrepareSettings(**of_corpus, vocab_size=300, processes=1, held_out=0.1))
    save_checkpoint(
        teacher(data_of := Corpus.open(folder / "bert")), folder / "teacher", "BertForMaskedLM", {}
    )
    vectors = np.random.default_rng(1).normal(size=(data_of.vocab_size, 8))
    np.save(folder / "vectors.npy", vectors.astype(np.float32))
    words = sorted({word for text in made_up_text(60) for word in text.lower().replace(".", "").split()})
    phrases = [f"{first} {second}" for first in words[:20] for second in words[:20]]
    (folder / "phrases.txt").write_text("\n".join(phrases) + "\n")
    return folder


def teacher(corpus: Corpus) -> BertForMaskedLM:
    """Return a model of four layers with weights so large that its predictions differ from place to place."""
    torch.manual_seed(5)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    config = BertConfig(
        vocab_size=corpus.vocab_size, **shape, max_position_embeddings=64, initializer_range=0.2
    )
    return BertForMaskedLM(config)


def settings_of(recipe: str, data: Path, without: Sequence[str] = ()) -> PretrainSettings:
    """Return the settings of a tiny run without dropout."""
    model = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **SHAPES.get(recipe, {}),
    }  # fmt: skip
    values: dict[str, Any] = {
        "corpus": data / OWN_VOCABULARY.get(recipe, "bert"), "output_dir": Path("unused"), "recipe": recipe,
        "model": model, "max_tokens": 48,
        "batch_size": 8, "max_steps": STEPS, "learning_rate": RATE, "warmup_ratio": WARMUP / STEPS,
        "weight_decay": DECAY, "device": "cpu", "seed": 7,
    }  # fmt: skip
    if recipe == "distilbert":
        values["distillation"] = {"teacher": data / "teacher"}
    if recipe in MASKING_FILES:
        values["masking"] = {name: data / file for name, file in MASKING_FILES[recipe].items()}
    return PretrainSettings(**{name: value for name, value in values.items() if name not in without})


def trained_by_us(settings: PretrainSettings, start: Path, end: Path) -> list[float]:
    """Train with the project's own loop; write the weights before and after, return the losses."""
    corpus, alone = Corpus.open(settings.corpus), Processes(0, 1, torch.device("cpu"))
    special = SpecialIds.load(corpus.folder)
    torch.manual_seed(settings.seed)
    objective = make_objective(settings, corpus, special)
    save(objective, start)
    mask = masking(settings, corpus, special)
    loop = make_loop(settings, objective, Batches(settings, corpus, mask, alone), alone)
    losses = [numbers["loss"] for numbers in loop.steps()]
    save(objective, end)
    return losses


def save(objective: Objective, folder: Path) -> None:
    """Write all weights: the model and what lies beside it as a run does, others to a file of their own."""
    weights = {name: value.detach().clone() for name, value in objective.named_parameters()}
    model = objective.model_weights(weights)
    save_weights(model, objective.model.config, folder, objective.architecture, {})
    objective.save_beside(folder, weights, {})
    for teacher in objective.frozen:
        assert isinstance(teacher, BertForMaskedLM)
        save_checkpoint(teacher, folder / TEACHER, "BertForMaskedLM", {})
    save_file(
        {name: value for name, value in weights.items() if not name.startswith("model.")}, folder / REST
    )


def batches(settings: PretrainSettings) -> Iterator[list[MaskedExample]]:
    """Yield the examples of each step."""
    corpus = Corpus.open(settings.corpus)
    mask = masking(settings, corpus, SpecialIds.load(corpus.folder))
    examples = stream(settings, corpus, mask, settings.max_tokens, settings.seed)
    return (batch for batch, _ in examples.batches(settings.batch_size))


@pytest.fixture(autouse=True)
def likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let generators propose the likeliest piece, as those of transformers do here: their draws would differ."""
    monkeypatch.setattr(replaced_token, "sample", lambda logits: logits.argmax(-1))


@pytest.mark.parametrize("recipe", PAPERS)
def test_the_first_steps_are_those_of_transformers(recipe: str, data: Path, tmp_path: Path) -> None:
    settings = settings_of(recipe, data)
    expected = trained_by_us(settings, tmp_path / "start", tmp_path / "end")
    run = Run(STEPS, RATE, WARMUP, SpecialIds.load(settings.corpus).pad, DECAY)
    loop = TheirLoop.start(recipe, run, tmp_path / "start")
    losses = list(loop.steps(batches(settings)))
    assert losses[0] == pytest.approx(expected[0], abs=1e-5)
    assert losses == pytest.approx(expected, abs=2e-5)
    same = PAPERS[recipe].model(tmp_path / "end").state_dict()
    for name, weight in loop.reference.state_dict().items():
        if not name.endswith(
            ("key.bias", "k_lin.bias")
        ):  # no score depends on them: their gradient is rounding
            assert torch.allclose(weight, same[name], atol=1e-4), name


@pytest.mark.parametrize("recipe", PAPERS)
def test_constants_are_those_of_the_paper(recipe: str, data: Path) -> None:
    paper = PAPERS[recipe]
    adam = paper.optimizer
    settings = settings_of(recipe, data, without=["weight_decay"])
    assert isinstance(adam, Adam)
    assert settings.optimizer == OPTIMIZERS[type(adam)]
    assert settings.schedule == SCHEDULES[paper.schedule]
    assert settings.weight_decay == paper.weight_decay
    assert settings.max_grad_norm == paper.max_norm
    assert settings.adam_epsilon == adam.epsilon
    assert (BETA1, settings.adam_beta2) == (adam.beta1, adam.beta2)
    assert settings.bias_correction is adam.corrected
