"""The most probable of several texts after a prompt: /multiple-choice."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from bert.errors import MAX_FIELD_ERRORS, FieldError, InvalidRequestError
from bert.tasks.multiple_choice import ScoredChoice, decode
from service.pipeline.inputs import TextLists, Texts, check_not_blank, too_many_texts
from service.tasks.schema import (
    RESULT_BYTES,
    Example,
    Item,
    ModelName,
    NonEmpty,
    NotBlank,
    Schema,
    TopK,
    Truncate,
    TypedDict,
    complete,
    text_size,
)
from service.tasks.task import LONG_CHARACTERS, PART, Call, ListItems, Results, ServedTask, response_example

TwoOrMore = Annotated[list[Item], Field(json_schema_extra={"minItems": 2})]
"""A list of at least two, which `check_choices` sees to."""


class MultipleChoiceRequest(Schema):
    """A prompt and its choices, or a list of prompts.

    Several prompts have one list of choices for all, or a list of lists: one for each prompt.
    """

    example: ClassVar[Example] = {
        "prompt": "The film was dull, so",
        "choices": ["it was not long.", "she left."],
    }
    nested: ClassVar[frozenset[str]] = frozenset({"choices"})

    prompt: NotBlank | NonEmpty[NotBlank] = Field(description="A question, or the text before the choices.")
    choices: TwoOrMore[NotBlank] | NonEmpty[TwoOrMore[NotBlank]] = Field(
        description="Texts that are read beside the prompt, one at a time."
    )
    top_k: TopK | None = Field(None, description="Number of scores, best first. Default: all choices.")
    truncate: Truncate = False
    model: ModelName = None


@complete
class ChoiceScore(TypedDict):
    """A choice and its probability among the choices of its prompt."""

    index: Annotated[int, Field(description="Index of the choice in its list.")]
    choice: str
    score: float


@complete
class MultipleChoiceResult(ChoiceScore):
    """The best choice of one prompt, and the scores of all choices or of the `top_k` best."""

    scores: Annotated[
        list[ChoiceScore], Field(description="Best first. The probabilities of all choices add up to 1.")
    ]
    truncated: Annotated[bool, Field(description="True if a choice, or the prompt beside one, was cut.")]


class MultipleChoice(ServedTask[MultipleChoiceRequest]):
    """Find the most probable of several texts for each prompt."""

    path, model_task = "/multiple-choice", "multiple_choice"
    request, result = MultipleChoiceRequest, MultipleChoiceResult
    order = "One result for each prompt, in order."
    texts, more = ("prompt", "choices"), "scores"
    probe: ClassVar = {"choices": ["a", "b"]}
    example = response_example(
        "stories",
        29,
        {
            "index": 1,
            "choice": "she left.",
            "score": 0.98,
            "scores": [
                {"index": 1, "choice": "she left.", "score": 0.98},
                {"index": 0, "choice": "it was not long.", "score": 0.02},
            ],
            "truncated": False,
        },
    )

    async def run(self, call: Call, request: MultipleChoiceRequest) -> Results:
        """Answer a request."""
        prompt, choices = Texts.of("prompt", request.prompt), TextLists.of("choices", request.choices)
        count, top_k = check_choices(call.pipeline.max_texts, prompt, choices), request.top_k
        call.note_size(prompt, choices_size(choices, count, top_k))
        rows = await call.encode_with_each(prompt, choices, count, truncate=request.truncate)
        flat = [encoding for each in rows for encoding in each]
        scores = iter(await call.infer(flat))
        results = await call.decode(
            len(flat), lambda: [decode([next(scores) for _ in each], top_k) for each in rows]
        )
        call.note_outcomes(("choice", each[0].score) for each in results)
        call.sample(lambda: (_sampled(prompt, choices, i, scored) for i, scored in enumerate(results)))
        truncated = [any(encoding.truncated for encoding in each) for each in rows]
        return Results(sum(map(len, results)), lambda listed: _rows(results, choices, truncated, listed))


def _rows(
    results: Sequence[Sequence[ScoredChoice]],
    choices: TextLists,
    truncated: Sequence[bool],
    listed: ListItems,
) -> Iterator[MultipleChoiceResult]:
    for item, (scored, cut) in enumerate(zip(results, truncated, strict=True)):
        texts = choices.of_item(item)
        scores = [
            ChoiceScore(index=each.index, choice=texts[each.index], score=each.score) for each in scored
        ]
        is_long = any(len(text) > LONG_CHARACTERS for text in texts)
        yield {**scores[0], "scores": listed(scores, 1 if is_long else PART), "truncated": cut}


def _sampled(
    prompt: Texts, choices: TextLists, item: int, scored: Sequence[ScoredChoice]
) -> dict[str, object]:
    texts = {
        "prompt": prompt.values[prompt.index(item)],
        "choices": choices.of_item(item),
    }
    margin = scored[0].score - scored[1].score if len(scored) > 1 else None
    return {**texts, "label": scored[0].index, "score": scored[0].score, "margin": margin}


def choices_size(choices: TextLists, prompts: int, top_k: int | None) -> int:
    """Return the most bytes of the `top_k` best choices, or of all, of so many prompts; the best of each is there twice."""
    sizes = [
        sorted((text_size(choice) + RESULT_BYTES for choice in each), reverse=True) for each in choices.lists
    ]
    once = sum(sum(each[:top_k]) + each[0] for each in sizes)
    return once if choices.is_nested else prompts * once


def check_choices(limit: int, prompt: Texts, choices: TextLists) -> int:
    """Return the number of prompts with their choices; one prompt goes with each of several lists.

    Raises InvalidRequestError for lists of unequal length, fewer than two choices for a prompt, empty texts, and more
    than `limit` texts, where the choices of each prompt count.
    """
    if not len(prompt):
        raise InvalidRequestError([FieldError("prompt", "has no text; send at least one")])
    count = max(len(prompt), len(choices.lists))
    if len(prompt) != len(choices.lists) and choices.is_nested and prompt.is_list:
        message = (
            f"has {len(choices.lists)} lists and prompt has {len(prompt)} texts; send a list for each prompt, or one list "
            "of strings for all"
        )
        raise InvalidRequestError([FieldError("choices", message)])
    total = len(prompt) + sum(len(choices.of_item(item)) for item in range(count))
    if total > limit:
        raise InvalidRequestError([too_many_texts("prompt and choices", total, limit)])
    errors = [
        FieldError(choices.where(item), f"has {len(each)} choices; send at least two")
        for item, each in enumerate(choices.lists)
        if len(each) < 2
    ]
    errors += [
        FieldError(choices.where(item, number), "is empty")
        for item, each in enumerate(choices.lists)
        for number, choice in enumerate(each)
        if not choice.strip()
    ]
    if errors:
        raise InvalidRequestError(errors[:MAX_FIELD_ERRORS])
    check_not_blank(prompt)
    return count
