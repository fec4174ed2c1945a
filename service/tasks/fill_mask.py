"""Pieces that fill the masks of texts: /fill-mask."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, WithJsonSchema

from bert.encoding import Encoding, Pieces
from bert.tasks import fill_mask
from bert.tasks.fill_mask import MAX_CANDIDATES, FilledMask
from service.pipeline.inputs import Texts, make_each
from service.pipeline.pipeline import is_short_text
from service.tasks.schema import (
    RESULT_BYTES,
    Example,
    ModelName,
    NonEmpty,
    Schema,
    TypedDict,
    complete,
    text_size,
    whole,
)
from service.tasks.task import LONG_CHARACTERS, PART, Call, ListItems, Results, ServedTask, response_example

Candidates = Annotated[int, Field(ge=1, le=MAX_CANDIDATES), whole(1, MAX_CANDIDATES)]
Masked = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\[MASK\]"})]
_PARIS = {"token": "capital", "id": 3007, "score": 0.99, "sequence": "Paris is the capital of France."}
_HEART = {"token": "heart", "id": 2540, "score": 0.01, "sequence": "Paris is the heart of France."}


class FillMaskRequest(Schema):
    """One text or a list of texts, each with at least one [MASK]."""

    example: ClassVar[Example] = {"text": "Paris is the [MASK] of France.", "top_k": 2}
    text: Masked | NonEmpty[Masked] = Field(
        description="Text with [MASK] in each place to fill, at most as long as the model reads."
    )
    top_k: Candidates = Field(5, description="Number of candidates for each mask, best first.")
    model: ModelName = None


@complete
class FillMaskResult(TypedDict):
    """The masks of one text, in text order."""

    masks: list[FilledMask]


@dataclass(frozen=True, slots=True)
class FilledMasks:
    """Each text's masks, decoded lazily, and the approximate number of results."""

    texts: Iterator[Iterator[FilledMask]]
    results: int


class FillMask(ServedTask[FillMaskRequest]):
    """Find the most probable pieces for each [MASK]."""

    path, model_task = "/fill-mask", "fill_mask"
    request, result = FillMaskRequest, FillMaskResult
    order = "One result for each text, in order."
    probe: ClassVar = {"text": "a [MASK]"}
    example = response_example(
        "masked", 9, {"masks": [{"start": 13, "end": 19, "candidates": [_PARIS, _HEART]}]}
    )

    async def run(self, call: Call, request: FillMaskRequest) -> Results:
        """Answer a request."""
        text = Texts.of("text", request.text)
        call.check_count(text)
        found = await fill_masks(call, text, top_k=request.top_k)
        return Results(found.results, lambda listed: mask_rows(found, listed), is_lazy=True)


def mask_rows(found: FilledMasks, listed: ListItems) -> Iterator[FillMaskResult]:
    """Yield the results of texts, whose masks are decoded one at a time."""

    def row(mask: FilledMask) -> FilledMask:
        is_long = any(len(candidate.sequence) > LONG_CHARACTERS for candidate in mask.candidates)
        return FilledMask(mask.start, mask.end, listed(mask.candidates, 1 if is_long else PART))

    return ({"masks": listed(map(row, masks))} for masks in found.texts)


async def fill_masks(call: Call, text: Texts, *, top_k: int) -> FilledMasks:
    """Return each text's masks with their `top_k` best pieces, decoded lazily."""
    tokenizer = call.model.tokenizer
    with call.context.timed("tokenize"):
        encodings = await _encode(call, text)
    masks = [len(fill_mask.mask_positions(encoding)) for encoding in encodings]
    sizes = (text_size(each) + RESULT_BYTES for each in text.values)
    call.note_size(text, top_k * sum(size * count for size, count in zip(sizes, masks, strict=True)))
    outputs = await call.infer(encodings)

    texts = (
        fill_mask.decode(value, encoding, best, tokenizer, top_k)
        for value, encoding, best in zip(text.values, encodings, outputs, strict=True)
    )
    return FilledMasks(texts, sum(masks) * top_k)


async def _encode(call: Call, text: Texts) -> list[Encoding]:
    """Encode texts with masks; raises InvalidRequestError for those without one or over the model's length."""
    bounded, tokenizer, limit = call.tokenizer(), call.model.tokenizer, call.model.spec.max_tokens
    bounded.has_short_texts = is_short_text(text.values)
    split = await bounded.build(len(text), lambda: [fill_mask.split(tokenizer, each) for each in text.values])
    bounded.check_tokens(sum(len(each.masks) for each in split))
    found = iter(await bounded.pieces([part for each in split for part in each.parts]))
    whole_texts = list[Pieces]()

    def encode(index: int) -> Encoding:
        pieces = [next(found) for _ in split[index].parts]
        whole_texts.append(fill_mask.joined(tokenizer, split[index], pieces))
        return fill_mask.encode(tokenizer, whole_texts[-1], limit)

    encodings = await bounded.build(len(text), lambda: make_each(len(text), encode, text.where))
    bounded.note_unknown(whole_texts, text.where)
    return encodings
