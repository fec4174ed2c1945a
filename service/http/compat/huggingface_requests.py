"""The requests of Hugging Face's inference API."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from bert.errors import displayed
from bert.tasks.aggregation import AGGREGATION_NAMES, Aggregation
from service.http.compat.requests import (
    CompatibleRequest,
    Flag,
    Labels,
    Strings,
    check_direction,
    only,
    refused,
    validate,
)
from service.tasks.ner import Threshold
from service.tasks.qa import AnswerTokens
from service.tasks.schema import Dimensions, Example, TopK


class Parameters(CompatibleRequest):
    """Options of all tasks. `FORMS` of huggingface.py has those of each; what cannot be honoured is refused."""

    top_k: TopK | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    aggregation_strategy: str | None = None
    ignore_labels: list[str] | None = None
    handle_impossible_answer: Flag = False
    max_answer_len: AnswerTokens | None = None
    max_question_len: object = None
    max_seq_len: object = None
    doc_stride: object = None
    stride: object = None
    align_to_words: Annotated[Any, only(True, why="answers begin and end with words")] = None
    candidate_labels: Strings | None = None
    """Labels for zero-shot classification; a string has commas between them."""
    hypothesis_template: str | None = None
    multi_label: Flag = False
    labels: Labels | None = None
    """Labels of entities, of models that take those of a request."""
    threshold: Threshold | None = None
    flat_ner: Flag | None = None
    targets: Annotated[Any, only(why="targets are not looked up, only the best candidates are known")] = None
    truncate: Flag | None = None
    truncation: Flag | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None
    normalize: Flag | None = None
    dimensions: Dimensions | None = None
    encoding_format: str | None = None

    def cuts(self) -> bool:
        """Tell whether long texts are cut; they are refused otherwise."""
        check_direction(self.truncation_direction)
        return bool(self.truncate or self.truncation)

    def aggregation(self) -> Aggregation:
        """Return the way from pieces to entities, in small or capital letters as in `transformers`."""
        name = "first" if self.aggregation_strategy is None else self.aggregation_strategy
        try:
            return Aggregation(name.lower())
        except ValueError:
            message = f"must be {AGGREGATION_NAMES}, not {displayed(name)!r}"
            raise refused("aggregation_strategy", message) from None


class InferenceRequest(CompatibleRequest):
    """Inputs of the model's task, and options under `parameters` or beside `inputs`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    example: ClassVar[Example] = {"inputs": "A warm film.", "parameters": {"top_k": 1}}
    inputs: Any = Field(
        description='A text or a list of texts; {"question", "context"}; {"source_sentence", "sentences"}; '
        '{"text", "text_pair"}; or a list of such objects.'
    )
    parameters: dict[str, Any] | None = None

    def options(self) -> Parameters:
        """Return the validated options.

        An unknown parameter is refused, unless it is empty or false; what stands beside `inputs` is ignored.
        """
        named = {name: value for name, value in (self.parameters or {}).items() if value is not None}
        if unknown := {name for name, value in named.items() if value} - Parameters.model_fields.keys():
            raise refused(f"parameters.{displayed(min(unknown))}", "is not an option of this API")
        beside = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        return validate(Parameters, {**beside, **named})


class OneText(CompatibleRequest):
    """A text, and for models of pairs a second one."""

    text: str
    text_pair: str | None = None


class Question(CompatibleRequest):
    """A question and the text that may answer it."""

    question: str
    context: str


class Plain(CompatibleRequest):
    """Texts."""

    inputs: Strings
