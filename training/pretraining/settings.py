"""Settings of `bert-pretrain`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from bert.families import FAMILIES
from bert.settings import CommandSettings, SettingsPart
from training.pretraining.new_model import PUBLISHED, STRETCHABLE, ModelSettings
from training.pretraining.recipes import READ_BY, Recipe, with_recipe

Objective = Literal["mlm", "mlm+nsp", "mlm+sop", "left_to_right", "span", "replaced_token", "distillation"]
Optimizer = Literal["adamw", "lamb", "stable_adamw"]
Sharing = Literal["all", "gradient_disentangled", "none"]
Schedule = Literal["linear", "google", "one_cycle", "warmup_stable_decay", "constant"]
DecayShape = Literal["linear", "sqrt"]
Examples = Literal["pairs", "sentence_order", "full_sentences", "chunks", "single", "segments"]
_OF_KINDS = {
    "smoothing": ("tokens",),
    "phrases": ("phrases",),
    "vectors": ("similar_words",),
    "span_shares": ("spans", "ngrams", "similar_words"),
}
"""Settings of masking → the kinds that read them."""
PAIR_LABELS: dict[str, str] = {"mlm+nsp": "pairs", "mlm+sop": "sentence_order"}
"""Objectives over pairs → the examples with their labels."""


class MaskingSettings(SettingsPart):
    """Choice of the tokens to predict, and their replacements."""

    kind: Literal["tokens", "whole_words", "spans", "ngrams", "similar_words", "phrases"] = "tokens"
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are predicted."""
    max_predictions: Annotated[int, Field(ge=0)] = 0
    """Most predicted tokens of one example; 0 sets no bound (the paper: 20 at 128 tokens, 77 at 512)."""
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the predicted tokens that become [MASK]."""
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the predicted tokens that become a random piece; the rest stay."""
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Exponent for tokens: a piece seen n times in the corpus is chosen in proportion to n^-smoothing (DistilBERT: 0.7);
    0 chooses all alike."""
    static_dupes: Annotated[int, Field(ge=0)] = 0
    """Copies of the corpus that are masked once (the paper's dupe_factor, 5 to 10); 0 masks afresh at each draw."""
    span_shares: list[float] = Field(default_factory=list)
    """Shares of 1, 2, … words in a row. Empty for the paper's: spans 1 to 10 words (SpanBERT), ngrams 6/11, 3/11, 2/11
    (ALBERT), similar_words 0.4, 0.3, 0.2, 0.1 (MacBERT)."""
    phrases: Path | None = None
    """Text file with a phrase a line, for phrases."""
    vectors: Path | None = None
    """Vectors for similar_words: word2vec's text format, a word and its vector a line, or .npy with a vector a piece (V, D).
    By default the base's embeddings."""


class DistillationSettings(SettingsPart):
    """A small model learns the predictions of a large one (Sanh et al. 2019, arXiv 1910.01108)."""

    teacher: str
    """Checkpoint with an MLM head and the same vocabulary: a folder, a model of the hub (org/name, org/name@revision)
    or the name of a packaged base."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Divisor of both models' logits: the higher, the more the teacher's second choices count."""
    soft_weight: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the teacher's distribution over the vocabulary."""
    soft_over: Literal["all", "masked"] = "all"
    """Tokens at which the distributions are compared: all real ones, as in the paper, or the masked ones."""
    hard_weight: Annotated[float, Field(ge=0)] = 2.0
    """Weight of the loss at the masked words."""
    cosine_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the angle between the last hidden states of both models, over all real tokens."""
    start_from_teacher: bool = False
    """True copies the teacher's embeddings, head, and layers spread over its depth; both must be equally wide."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _path_as_text(cls, given: Any) -> Any:
        return str(given) if isinstance(given, Path) else given


class ReplacedTokenSettings(SettingsPart):
    """A small generator fills the masks, and the model detects the replaced tokens (Clark et al. 2020, arXiv 2003.10555)."""

    generator_width: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Width of the generator as a share of the model's."""
    generator_depth: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Layers of the generator as a share of the model's."""
    embedding_sharing: Sharing = "all"
    """Embeddings that both models learn (`all`), those of the generator plus an offset that the model learns
    (`gradient_disentangled`, DeBERTa version 3), or each model's own (`none`)."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Divisor of the generator's logits before a piece is drawn."""
    discriminator_weight: Annotated[float, Field(gt=0)] = 50.0
    """Weight of the loss of detecting replaced tokens; the generator's has 1."""


class Phase(SettingsPart):
    """A part of the run with examples of one length."""

    max_tokens: Annotated[int, Field(ge=16)]
    """Longest example, tokens."""
    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the run, by steps or by the clock; shares add up to 1."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Examples a step; by default the run's."""


class PretrainSettings(CommandSettings):
    """Pretrain BERT or one of its relatives on a corpus that bert-prepare wrote."""

    model_config = SettingsConfigDict(env_prefix="BERT_PRETRAIN_", cli_prog_name="bert-pretrain")

    corpus: Path = Field(description="folder that bert-prepare wrote")
    output_dir: Path = Field(description="folder for checkpoints, logs and the report")
    recipe: Recipe | None = Field(
        None,
        description="paper whose objective, examples, masking and optimiser are taken; settings beside it win; by default "
        "modernbert, unless objective, examples, masking or base is given",
    )
    objective: Objective = Field("mlm+nsp", description="what the model learns")
    examples: Examples = Field("pairs", description="way in which sentences make examples")
    short_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of documents (segments: of examples) of a random shorter length; full_sentences and chunks have "
        "none",
    )
    masking: MaskingSettings = Field(
        default_factory=lambda: MaskingSettings(), description="choice of the tokens to predict"
    )
    model: ModelSettings = Field(default_factory=lambda: ModelSettings(), description="shape of a new model")
    base: str | None = Field(None, description="checkpoint to go on from, instead of a new model")
    distillation: DistillationSettings | None = Field(None, description="distillation: its teacher")
    replaced_token: ReplacedTokenSettings = Field(
        default_factory=lambda: ReplacedTokenSettings(), description="replaced_token: its generator"
    )

    max_tokens: int = Field(128, ge=16, description="longest example, tokens")
    phases: list[Phase] = Field(
        default_factory=list, description="parts with a max_tokens of their own; none is one part"
    )
    batch_size: int = Field(256, ge=1, description="examples a step, over all processes")
    ramp_from: int = Field(0, ge=0, description="batch size at the start; 0 starts with batch_size")
    ramp_share: float = Field(0.0, ge=0, le=1, description="share of the run over which the batch grows")
    microbatch_size: int = Field(
        0, ge=0, description="examples a process computes at once; 0 all of its part: set it to fit memory"
    )
    packed: bool = Field(
        True, description="short examples share a row, attention staying inside each; off pads them instead"
    )
    max_steps: int = Field(0, ge=0, description="steps of the optimiser")
    max_minutes: float = Field(
        0.0, ge=0, description="length of the run by the clock instead, training time only"
    )

    optimizer: Optimizer = Field(
        "adamw",
        description="rule of a step; lamb, for large batches, scales it to the length of each tensor; stable_adamw shortens "
        "it where gradients are larger than before",
    )
    learning_rate: float = Field(1e-4, gt=0, description="peak learning rate")
    schedule: Schedule = Field("linear", description="course of the learning rate")
    warmup_ratio: float = Field(0.01, ge=0, lt=1, description="share of the run over which the rate rises")
    decay_ratio: float = Field(0.2, ge=0, le=1, description="warmup_stable_decay: share over which it falls")
    decay_shape: DecayShape = Field(
        "linear", description="warmup_stable_decay: straight down, or as 1 - sqrt, fast at first"
    )
    final_ratio: float = Field(0.0, ge=0, le=1, description="rate at the end, as a share of the peak")
    weight_decay: float = Field(
        0.01, ge=0, description="decoupled decay, not on biases and LayerNorm unless decay_all"
    )
    decay_all: bool = Field(
        False, description="decay biases and LayerNorm too, as RoBERTa's and SpanBERT's code does"
    )
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="memory of the second moment")
    adam_epsilon: float = Field(1e-6, gt=0, description="epsilon of the optimiser")
    bias_correction: bool = Field(
        True, description="correct the bias of Adam's moments; BERT's and ALBERT's code does not"
    )
    max_grad_norm: float = Field(1.0, ge=0, description="clip of the global gradient norm; 0 does not clip")

    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="arithmetic of the matrix products; auto is bf16 on a GPU and fp32 on a CPU"
    )
    device: str = Field(
        "auto", description="device to use: cpu, cuda, or auto, which takes a GPU if there is one"
    )
    threads: int = Field(0, ge=0, le=4096, description="CPU threads of torch; 0 leaves torch's own choice")
    data_workers: int = Field(
        0, ge=0, description="processes that make batches; 0 makes them in between steps"
    )
    compile: bool = Field(
        False,
        description="torch.compile of each layer, and of heads with their losses; "
        "pays on a GPU with rows of one length",
    )
    activation_checkpointing: bool = Field(
        False, description="compute layers again in the backward pass: less memory, a quarter more time"
    )
    sharding: Literal["none", "full"] = Field(
        "none", description="model in several processes: whole in each (DDP), or its parts spread (FSDP)"
    )
    seed: int = Field(42, ge=0, lt=2**63, description="seed of weights, order, masks and dropout")

    save_every_steps: int = Field(500, ge=0, description="steps between checkpoints; 0 only at the end")
    save_every_minutes: float = Field(
        0.0, ge=0, description="minutes between checkpoints, beside those by steps; 0: by steps alone"
    )
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints that stay on disk")
    eval_every_steps: int = Field(
        500, ge=0, description="steps between evaluations on held-out text; 0 only at the end"
    )
    eval_examples: int = Field(512, ge=0, description="examples of held-out text to score")
    resume: bool = Field(True, description="go on from the last checkpoint in output_dir, if there is one")

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        return with_recipe(given) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _fit_together(self) -> "PretrainSettings":
        for rule in (_length, _phases, _objective, _unread, _masking, _base, _batch, _schedule):
            rule(self)
        return self

    @property
    def longest(self) -> int:
        """Tokens of the longest example of any phase."""
        return max([self.max_tokens, *(phase.max_tokens for phase in self.phases)])


def _length(settings: PretrainSettings) -> None:
    if bool(settings.max_steps) == bool(settings.max_minutes):
        raise ValueError(
            f"give max_steps ({settings.max_steps}) or max_minutes ({settings.max_minutes:g}), and one only"
        )
    if settings.base is None and settings.longest > settings.model.max_position_embeddings:
        raise ValueError(
            f"max_tokens ({settings.longest}) must be at most model.max_position_embeddings "
            f"({settings.model.max_position_embeddings})"
        )


def _phases(settings: PretrainSettings) -> None:
    total = sum(phase.share for phase in settings.phases)
    if settings.phases and abs(total - 1.0) > 1e-6:
        raise ValueError(f"the shares of phases add up to {total:g}, and should to 1")


def _objective(settings: PretrainSettings) -> None:
    wanted = PAIR_LABELS.get(settings.objective)
    if wanted and settings.examples != wanted:
        raise ValueError(
            f"objective {settings.objective!r} needs examples: {wanted}, not {settings.examples!r}"
        )
    family = settings.model.model_type
    if wanted and settings.base is None and not FAMILIES[family].has_pair_head:
        raise ValueError(f"objective {settings.objective!r} needs a head that model_type {family!r} has not")
    if settings.objective == "span" and settings.masking.kind != "spans":
        raise ValueError(f"objective 'span' needs masking kind spans, not {settings.masking.kind!r}")
    if (settings.objective == "distillation") != (settings.distillation is not None):
        raise ValueError("objective 'distillation' and the distillation settings belong together")
    distil = settings.distillation
    if distil and not (distil.soft_weight or distil.hard_weight or distil.cosine_weight):
        raise ValueError("distillation has three weights, and all are 0: nothing would be learned")


def _unread(settings: PretrainSettings) -> None:
    for name, (owner, readers) in READ_BY.items():
        value, default = getattr(settings, owner), PretrainSettings.model_fields[name]
        if value not in readers and getattr(settings, name) != default.get_default(call_default_factory=True):
            raise ValueError(
                f"{name} is for {owner} {' or '.join(map(repr, readers))}, and not for {value!r}: leave it out"
            )


def _masking(settings: PretrainSettings) -> None:
    masking = settings.masking
    if masking.kind == "phrases" and masking.phrases is None:
        raise ValueError("masking kind 'phrases' needs masking.phrases, a file with a phrase a line")
    for name, kinds in _OF_KINDS.items():
        if getattr(masking, name) and masking.kind not in kinds:
            raise ValueError(
                f"masking.{name} is for masking kind {' or '.join(map(repr, kinds))}, and not for {masking.kind!r}"
            )
    if settings.objective == "left_to_right" and masking != MaskingSettings():
        raise ValueError("objective 'left_to_right' masks nothing: leave masking out")


def _base(settings: PretrainSettings) -> None:
    free = {"hidden_dropout_prob", "attention_probs_dropout_prob", *STRETCHABLE}
    stated = settings.model.model_dump(exclude_defaults=True, exclude=free)
    of_family = PUBLISHED.get(settings.model.model_type, {})
    given = [name for name, value in stated.items() if value != of_family.get(name)]
    if settings.base is not None and given:
        names = ", ".join(f"model.{name}" for name in given)
        raise ValueError(f"base {settings.base!r} has a shape of its own: leave out {names}")


def _batch(settings: PretrainSettings) -> None:
    if settings.ramp_from and not settings.ramp_share:
        raise ValueError(
            f"ramp_from ({settings.ramp_from}) needs ramp_share, the share of the run over which the batch grows"
        )
    if settings.ramp_share and not settings.ramp_from:
        raise ValueError(f"ramp_share ({settings.ramp_share:g}) needs ramp_from, the batch size at the start")
    smallest = min(
        [settings.batch_size, *(phase.batch_size or settings.batch_size for phase in settings.phases)]
    )
    if settings.ramp_from > smallest:
        raise ValueError(f"ramp_from ({settings.ramp_from}) must not pass batch_size ({smallest})")
    if settings.masking.mask_share + settings.masking.random_share > 1:
        raise ValueError(
            f"mask_share ({settings.masking.mask_share}) and random_share ({settings.masking.random_share}) pass 1"
        )


def _schedule(settings: PretrainSettings) -> None:
    up, down = settings.warmup_ratio, settings.decay_ratio
    if settings.schedule == "warmup_stable_decay" and up + down > 1:
        raise ValueError(f"warmup_ratio ({up:g}) and decay_ratio ({down:g}) together pass the run's length")
