"""Vectors of tokens: for /embed, for /rerank by MaxSim, and for the other APIs. D numbers of a vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert.encoding import Encoding
from bert.errors import FieldError, InvalidRequestError
from bert.tasks.vectors.token_vectors import SIDES, encode, maxsim
from service.engine.models import Floats
from service.pipeline.inputs import Texts, make_each
from service.tasks.schema import RESULT_BYTES
from service.tasks.task import Call, names, prompted

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Vectors (T, D) of each text's tokens, and which texts were cut."""

    vectors: Sequence[Floats]
    truncated: list[bool]


async def embed_tokens(
    call: Call, *fields: tuple[Texts, str], truncate: bool, number_bytes: float | None = None
) -> TokenVectors:
    """Return the vectors of the texts of each field, which are queries or documents as its side says.

    `number_bytes` are those of a number in the response; None where the vectors are only compared. Raises what
    `Call.encode` does, and InvalidRequestError for more bytes than a response may take: before anything is queued.
    """
    spec, tokenizer = call.model.spec, call.model.tokenizer
    texts = [prompted(text, call.model, side if side in spec.prompts else "") for text, side in fields]
    sides = [SIDES[side] for text, side in fields for _ in text.values]
    values, name = [value for text in texts for value in text.values], names(*(text for text, _ in fields))
    bounded = call.tokenizer(only_ids=True)
    with call.context.timed("tokenize"):
        found = await bounded.pieces(values, spec.max_tokens if truncate else None)
        bounded.note_unknown(found, name)

        def one(index: int) -> Encoding:
            return encode(found[index], sides[index], tokenizer, spec, truncate=truncate)

        encodings = await bounded.build(len(values), lambda: make_each(len(values), one, name))
    numbers = sum(int((each.word_ids >= 0).sum()) for each in encodings) * (call.model.embedding_size or 0)
    if number_bytes is not None:
        call.note_size(texts[0], len(values) * RESULT_BYTES + round(numbers * number_bytes))
    elif (size := numbers * FLOAT_BYTES) > (most := call.pipeline.max_response_bytes):
        message = f"the vectors of all tokens take {size} bytes, and they may take {most} (max_response_bytes): send fewer"
        raise InvalidRequestError([FieldError(fields[-1][0].name, message)])
    return TokenVectors(await call.infer(encodings), [each.truncated for each in encodings])


async def token_scores(
    call: Call, query: Texts, candidates: Texts, *, truncate: bool
) -> tuple[Floats, list[bool]]:
    """Return the MaxSim of each candidate (K,) for one query, and whether it or the query was cut."""
    found = await embed_tokens(call, (query, "query"), (candidates, "document"), truncate=truncate)
    how = call.model.spec.token_vectors
    of_query, *documents = found.vectors
    scores = await call.decode(
        len(documents), lambda: maxsim(of_query, documents, mean=how is not None and how.mean)
    )
    first, *rest = found.truncated
    return np.asarray(scores), [first or cut for cut in rest]
