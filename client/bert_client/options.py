"""Options of each call, as keyword arguments. None, like leaving an option out, is the service's default."""

from typing import Literal, TypedDict

from bert_client.results import CallInfo


class Options(TypedDict, total=False):
    """Options of every call."""

    model: str | None
    """Name of a loaded model. Default: the task's default model."""
    timeout: float | None
    """Seconds for each request with its retries. Default: the client's."""
    info: CallInfo | None
    """Filled with the model, tokens and request ids of the call."""


class TruncateOptions(Options, total=False):
    """Options of calls that read a text as a whole."""

    truncate: bool | None
    """Cut each text at the model's length. Without it a longer text is refused."""


class ClassifyOptions(TruncateOptions, total=False):
    """Options of `classify`."""

    top_k: int | None
    """Number of scores, best first. Default: all labels."""
    threshold: float | None
    """Lowest score in `scores`, which may be empty; `label` is the best one in any case."""
    temperature: float | None
    """Divisor of the logits: over 1 the model is less sure of itself."""
    windows: Literal["max", "mean"] | None
    """Read long texts in windows, and merge the scores of these."""
    labels: list[str] | list[list[str]] | dict[str, str] | None
    """Labels to choose from, a list for each text, or what is read for each label, by a model that takes them."""
    template: str | None
    """Sentence about each of `labels`, with {} in the label's place. Default: `This example is {}.`, for a GLiClass `{}`."""
    multi_label: bool | None
    """Judge each of `labels` by itself: several may hold, or none."""


class NerOptions(Options, total=False):
    """Options of `ner`."""

    min_score: float | None
    """Lowest score of an entity. Default: none is left out."""
    labels: list[str] | list[list[str]] | dict[str, str] | None
    """Types of the entities to keep, by default all; or labels to find, a list for each text, or what is read for each."""
    threshold: float | None
    """Score that an entity of a label to find must exceed. Default: 0.5."""
    flat: bool | None
    """No two entities of labels to find overlap. Default: true."""
    multi_label: bool | None
    """The same words may be entities of several labels to find. Default: false."""
    join: bool | None
    """Neighbouring entities of one label to find are one. Default: false."""
    aggregation: Literal["first", "average", "max", "simple", "none"] | None
    """Way from the model's pieces to entities. Default: first."""
    left_out: list[Literal["symbols", "handles", "punctuation"]] | None
    """Kinds of words that no entity has, beside those that the model leaves out. Default: none."""


class QaOptions(Options, total=False):
    """Options of `qa`."""

    top_k: int | None
    """Most answers: the best, and the others as `alternatives`. Default: 1."""
    max_answer_tokens: int | None
    """Longest answer in the model's tokens."""
    no_answer_threshold: float | None
    """Probability of no answer over which the answer is None. Default: what the model was tuned with."""


class VectorOptions(TruncateOptions, total=False):
    """Options of every call that embeds texts."""

    prompt_name: str | None
    """Name of the model's prompt that goes before each text; "" is no prompt."""
    dimensions: int | None
    """Keep the first numbers of each vector. Default: all."""


class EmbedOptions(VectorOptions, total=False):
    """Options of `embed`."""

    embedding_type: Literal["float", "float16", "int8", "uint8", "binary", "ubinary"] | None
    """Type of the numbers, which is that of the array. Default: float, which is float32."""


class SparseOptions(TruncateOptions, total=False):
    """Options of `embed_sparse`."""

    side: Literal["query", "document"] | None
    """Side of the search that the texts are on; some models read queries and documents differently. Default: document."""
    top_k: int | None
    """Most weights of a text, the largest. Default: all."""
    threshold: float | None
    """Only weights over it. Default: 0."""
    pieces: bool | None
    """Give each piece as text too."""
    prompt_name: str | None
    """Name of the model's prompt that goes before each text; "" is no prompt."""


class SimilarityOptions(VectorOptions, total=False):
    """Options of `similarity`."""

    candidates_prompt_name: str | None
    """Name of the model's prompt that goes before each candidate."""
    top_k: int | None
    """Number of candidates for each text, best first. Default: all."""


class RerankOptions(TruncateOptions, total=False):
    """Options of `rerank`."""

    top_k: int | None
    """Number of candidates, best first. Default: all."""


class MultipleChoiceOptions(TruncateOptions, total=False):
    """Options of `multiple_choice`."""

    top_k: int | None
    """Number of scores, best first. Default: all choices."""


class FillMaskOptions(Options, total=False):
    """Options of `fill_mask`."""

    top_k: int | None
    """Number of candidates for each mask. Default: 5."""
