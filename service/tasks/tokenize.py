"""Texts as a model reads them: /tokenize."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from bert.tokenizer import Encoding
from service.engine.models import Model
from service.pipeline.inputs import Texts
from service.tasks.schema import RESULT_BYTES, Example, Schema, Text, TypedDict, complete, text_size
from service.tasks.task import Call, ListItems, Results, ServedTask, response_example

MAX_SHOWN_TOKENS = 2**14
"""Maximum tokens in a response, about 1.5 MB."""
SHOWN_RULE = "/tokenize shows at most {}"


class TokenizeRequest(Schema):
    """One text or a list of texts, of any length."""

    example: ClassVar[Example] = {"text": "Warsaw!"}
    text: Text
    model: str | None = Field(
        None, description="Name of the model whose tokenizer is used. Default: the first model."
    )


@dataclass(frozen=True, slots=True)
class Token:
    """A vocabulary piece and the characters text[start:end] that it covers.

    `special` are those that the model adds ([CLS], [SEP]); their start and end are 0.
    """

    id: int
    text: str
    start: int
    end: int
    special: bool


@complete
class TokenizeResult(TypedDict):
    """The tokens of one text."""

    tokens: list[Token]


class Tokenize(ServedTask[TokenizeRequest]):
    """Show texts as a model reads them."""

    path, model_task = "/tokenize", None
    request, result = TokenizeRequest, TokenizeResult
    order = "One result for each text, in order."
    by_row = needs_engine = False
    example = response_example(
        "ner",
        4,
        {
            "tokens": [
                {"id": 101, "text": "[CLS]", "start": 0, "end": 0, "special": True},
                {"id": 8199, "text": "warsaw", "start": 0, "end": 6, "special": False},
                {"id": 999, "text": "!", "start": 6, "end": 7, "special": False},
                {"id": 102, "text": "[SEP]", "start": 0, "end": 0, "special": True},
            ]
        },
    )

    async def run(self, call: Call, request: TokenizeRequest) -> Results:
        """Answer a request."""
        text = Texts.of("text", request.text)
        call.check_count(text)
        found = await tokens(call, text)

        def rows(listed: ListItems) -> Iterator[TokenizeResult]:
            return ({"tokens": listed(each)} for each in found)

        return Results(call.context.tokens, rows)


async def tokens(call: Call, text: Texts) -> list[list[Token]]:
    """Return each text's tokens, special ones included; at most MAX_SHOWN_TOKENS."""
    model, context = call.model, call.context
    bounded = call.tokenizer(most_tokens=MAX_SHOWN_TOKENS, limit_rule=SHOWN_RULE, for_engine=False)
    with context.timed("tokenize"):
        pieces = await bounded.pieces(text.values)
        bounded.note_unknown(pieces, text.where)
        special = model.tokenizer.form.special_tokens(1)
        context.tokens = sum(len(each) + special for each in pieces)
        bounded.check_tokens(context.tokens)
        call.note_size(text, context.tokens * RESULT_BYTES + sum(map(text_size, text.values)))
        return await bounded.build(
            len(text), lambda: [_tokens(model, model.tokenizer.single(each)) for each in pieces]
        )


def _tokens(model: Model, encoding: Encoding) -> list[Token]:
    columns = (encoding.ids.tolist(), encoding.offsets.tolist(), encoding.sequence_ids.tolist())
    return [
        Token(token_id, model.tokenizer.id_to_token(token_id), start, end, sequence < 0)
        for token_id, (start, end), sequence in zip(*columns, strict=True)
    ]
