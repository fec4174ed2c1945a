"""The recipes at a scale of minutes on one core."""

from pathlib import Path
from typing import Any

from training.corpus.settings import VocabularyFamily
from training.pretraining.settings import PretrainSettings

SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.1,
}  # fmt: skip
"""Shape of the models; weights start larger than BERT's, as suits the width."""
BASE = {**SHAPE, "num_hidden_layers": 4}
"""Shape of the model that MacBERT goes on from and DistilBERT learns from."""
MAX_TOKENS, BATCH_SIZE, WARMUP = 64, 16, 0.1
RATE, UNCORRECTED_RATE, LAMB_RATE = 1e-3, 5e-4, 5e-3
"""Peak learning rates. Adam's first steps are three times as long without bias correction; LAMB's are relative."""
UNCORRECTED = ("bert", "no_nsp", "left_to_right", "whole_word", "electra", "deberta_v3")
RATES = {**dict.fromkeys(UNCORRECTED, UNCORRECTED_RATE), "albert": LAMB_RATE}
SHAPES = {
    "albert": {"embedding_size": 32}, "electra": {"embedding_size": 32}, "deberta_v3": {"position_buckets": 16},
    "modernbert": {"local_attention": 16},
}  # fmt: skip
"""Recipe → settings in which its model is smaller than the family's default."""


OWN_VOCABULARY: dict[str, VocabularyFamily] = {"roberta": "roberta", "modernbert": "modernbert"}
"""Recipes whose family has a kind of vocabulary of its own, byte-level BPE; the others read BERT's WordPiece."""


def corpus_of(recipe: str, folder: Path) -> Path:
    """Return the corpus that a recipe reads."""
    return folder / (f"corpus-{recipe}" if recipe in OWN_VOCABULARY else "corpus")


def settings_of(recipe: str, folder: Path, out: Path, steps: int, seed: int, **more: Any) -> PretrainSettings:
    """Return the settings of a run; `folder` has the corpora, the phrases and the base."""
    values: dict[str, Any] = {
        "corpus": corpus_of(recipe, folder), "output_dir": out, "recipe": recipe, "max_steps": steps, "seed": seed,
        "max_tokens": MAX_TOKENS, "batch_size": BATCH_SIZE, "warmup_ratio": WARMUP, "device": "cpu",
        "learning_rate": RATES.get(recipe, RATE),
        "save_every_steps": 0, "eval_every_steps": max(1, steps // 8), "eval_examples": 256,
    }  # fmt: skip
    if recipe == "macbert":
        values["base"] = str(folder / "base" / "model")
    else:
        values["model"] = {**SHAPE, **SHAPES.get(recipe, {})}
    if recipe == "distilbert":
        values["distillation"] = {"teacher": folder / "base" / "model"}
    if recipe == "ernie":
        values["masking"] = {"phrases": folder / "phrases.txt"}
    return PretrainSettings(**{**values, **more})
