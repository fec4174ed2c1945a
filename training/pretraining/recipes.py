"""`recipe: bert` and its relatives: the settings of each paper, under one name.

A recipe holds the family of a new model, the objective, the examples, the masking, and what its paper changes in the
optimiser. Length, batch, rate and size are the run's own; `configs/` has the published ones. Settings beside a recipe win.

`modernbert` is what a run has that names nothing of the kind; so it has a length and a rate, which others leave to the run.
"""

from collections.abc import Mapping
from typing import Any, Literal

Recipe = Literal[
    "bert", "no_nsp", "left_to_right", "roberta", "whole_word", "spanbert", "albert", "electra", "macbert", "ernie",
    "distilbert", "deberta_v3", "modernbert",
]  # fmt: skip
DEFAULT: Recipe = "modernbert"
CHOICES = ("recipe", "objective", "examples", "masking", "base")
"""Settings of which any one keeps the default recipe away."""

READ_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "replaced_token": ("objective", ("replaced_token",)),
    "short_share": ("examples", ("pairs", "sentence_order", "single", "segments")),
    "decay_ratio": ("schedule", ("warmup_stable_decay",)),
    "decay_shape": ("schedule", ("warmup_stable_decay",)),
}
"""Setting → the one that it belongs to, and the values of that one which read it."""

_PAPER = {"kind": "tokens", "rate": 0.15, "static_dupes": 10}
_GOOGLE: dict[str, Any] = {"schedule": "google"}
"""Rate of google-research/bert, albert and electra, of ERNIE, and of SpanBERT's fork of fairseq."""
_ADAM: dict[str, Any] = {**_GOOGLE, "bias_correction": False}
"""Rate and optimiser of google-research/bert."""
RECIPES: dict[Recipe, dict[str, Any]] = {
    "bert": {"objective": "mlm+nsp", "examples": "pairs", "masking": _PAPER, **_ADAM},
    "no_nsp": {"objective": "mlm", "examples": "single", "masking": _PAPER, **_ADAM},
    "left_to_right": {"objective": "left_to_right", "examples": "single", **_ADAM},
    "roberta": {
        "objective": "mlm", "examples": "full_sentences", "masking": {"kind": "tokens"}, "model": {"model_type": "roberta"},
        "adam_beta2": 0.98, "decay_all": True, "max_grad_norm": 0.0,
    },
    "whole_word": {
        "objective": "mlm+nsp", "examples": "pairs", "masking": {**_PAPER, "kind": "whole_words"}, **_ADAM,
    },
    "spanbert": {
        "objective": "span", "examples": "single", "masking": {"kind": "spans"}, "short_share": 0.0,
        **_GOOGLE, "adam_epsilon": 1e-8, "weight_decay": 0.1, "decay_all": True,
    },
    "albert": {
        "objective": "mlm+sop", "examples": "sentence_order",
        "masking": {"kind": "ngrams"}, "model": {"model_type": "albert"}, "optimizer": "lamb", **_ADAM,
    },
    "electra": {
        "objective": "replaced_token", "examples": "segments", "short_share": 0.05,
        "masking": {"kind": "tokens", "mask_share": 0.85, "random_share": 0.0},
        "model": {"model_type": "electra"}, **_ADAM,
    },
    "macbert": {"objective": "mlm+sop", "examples": "sentence_order", "masking": {"kind": "similar_words"}, **_ADAM},
    "ernie": {
        "objective": "mlm+nsp", "examples": "pairs", "masking": {"kind": "phrases"},
        "model": {"hidden_act": "relu", "layer_norm_eps": 1e-5}, **_GOOGLE, "adam_epsilon": 1e-8,
    },
    "deberta_v3": {
        "objective": "replaced_token", "examples": "chunks",
        "masking": {"kind": "tokens", "mask_share": 1.0, "random_share": 0.0},
        "model": {"model_type": "deberta-v2"}, **_ADAM, "adam_beta2": 0.98,
        "replaced_token": {
            "generator_width": 1.0, "generator_depth": 0.5, "embedding_sharing": "gradient_disentangled",
        },
    },
    "distilbert": {
        "objective": "distillation", "examples": "full_sentences", "masking": {"kind": "tokens", "smoothing": 0.7},
        "model": {"model_type": "distilbert"}, "distillation": {"start_from_teacher": True},
        "adam_beta2": 0.98, "weight_decay": 0.0, "max_grad_norm": 5.0,
    },
    # AnswerDotAI/ModernBERT, yamls/modernbert. Its decay is 1e-5 a step at the peak: 0.0125 times the rate.
    "modernbert": {
        "objective": "mlm", "examples": "chunks", "masking": {"kind": "tokens", "rate": 0.3},
        "model": {"model_type": "modernbert", "vocab_multiple": 64}, "max_tokens": 1024, "microbatch_size": 32,
        "optimizer": "stable_adamw", "learning_rate": 8e-4, "adam_beta2": 0.98, "weight_decay": 0.0125,
        "max_grad_norm": 0.0, "schedule": "warmup_stable_decay", "decay_shape": "sqrt",
    },
}  # fmt: skip


def with_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of their recipe, named or by default; validation refuses an unknown name."""
    if not any(given.get(choice) for choice in CHOICES):
        given = {**given, "recipe": DEFAULT}
    name = given.get("recipe")
    recipe = next((recipe for known, recipe in RECIPES.items() if known == name), {})
    merged = {**recipe, **given}
    shape = given.get("model", {})
    if "model" in merged and isinstance(shape, Mapping):
        # A base has a family of its own.
        merged["model"] = dict(shape) if given.get("base") else {**recipe.get("model", {}), **shape}
    for part in ("distillation", "replaced_token"):
        if part in recipe and isinstance(asked := given.get(part, {}), Mapping):
            merged[part] = {**recipe[part], **asked}
    for setting, (owner, readers) in READ_BY.items():
        if setting not in given and owner in merged and merged[owner] not in readers:
            merged.pop(setting, None)
    if merged.get("objective") != "distillation" and "distillation" not in given:
        merged.pop("distillation", None)
    masking, asked = recipe.get("masking"), given.get("masking")
    if masking and isinstance(asked, Mapping) and asked.get("kind", masking["kind"]) == masking["kind"]:
        merged["masking"] = {**masking, **asked}  # another kind has no use for them
    if merged.get("objective") == "left_to_right" and asked is None:
        merged.pop("masking", None)
    return merged
