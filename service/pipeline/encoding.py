"""A request's texts as what the model reads: refused where they do not fit, cut where that is asked for.

Each raises what its `Reader` does, before anything is built that would not fit in the queue.
"""

from collections.abc import Sequence

from bert.errors import InputError
from bert.tasks import fill_mask, qa
from bert.tokenizer import Encoding, Pieces, Window
from service.engine.loaded_model import Model
from service.pipeline.inputs import Texts, each, pair_count
from service.pipeline.tokenization import Reader, window_tokens


async def encode_texts(
    reader: Reader, model: Model, text: Texts, pair: Texts | None, *, truncate: bool
) -> list[Encoding]:
    """Tokenise texts, or pairs of them.

    Raises the 422 that says how long each text over the model's length is.
    """
    tokenizer, limit = model.tokenizer, model.spec.max_tokens
    seconds = pair.values if pair is not None else []
    found = await reader.pieces([*text.values, *seconds], limit if truncate else None)
    first, second = found[: len(text)], found[len(text) :]

    def encode(index: int) -> Encoding:
        if pair is None:
            return tokenizer.single(first[index], limit, truncate=truncate)
        return tokenizer.pair(first[text.index(index)], second[pair.index(index)], limit, truncate=truncate)

    def name(index: int) -> str:
        return text.where(index) if pair is None else f"{text.where(index)} with {pair.where(index)}"

    count = len(text) if pair is None else pair_count(text, pair)
    return await reader.build(count, lambda: each(count, encode, name))


async def encode_fields(
    reader: Reader, model: Model, fields: Sequence[Texts], *, truncate: bool
) -> list[Encoding]:
    """Tokenise the texts of several fields, each by itself. Raises as `encode_texts` does."""
    limit = model.spec.max_tokens
    places = [(field, index) for field in fields for index in range(len(field))]
    found = await reader.pieces(
        [value for field in fields for value in field.values], limit if truncate else None
    )

    def encode(index: int) -> Encoding:
        return model.tokenizer.single(found[index], limit, truncate=truncate)

    def name(index: int) -> str:
        field, place = places[index]
        return field.where(place)

    return await reader.build(len(places), lambda: each(len(places), encode, name))


async def masked_encodings(reader: Reader, model: Model, text: Texts) -> list[Encoding]:
    """Tokenise texts with masks in them.

    Raises the 422 that names each text that has none, or is over the model's length.
    """
    reader.check_tokens(sum(value.count(fill_mask.MASK) for value in text.values))
    tokenizer, limit = model.tokenizer, model.spec.max_tokens
    split = [value.split(fill_mask.MASK) for value in text.values]
    read = iter(await reader.pieces([part for parts in split for part in parts]))

    def encode(index: int) -> Encoding:
        parts = split[index]
        pieces = fill_mask.joined(parts, [next(read) for _ in parts], tokenizer.mask_id)
        return fill_mask.encode(tokenizer, pieces, limit)

    return await reader.build(len(text), lambda: each(len(text), encode, text.where))


async def text_windows(reader: Reader, model: Model, text: Texts) -> tuple[list[Pieces], list[list[Window]]]:
    """Tokenise texts and cut them into windows; a text without a word has none."""
    spec, tokenizer, pieces = model.spec, model.tokenizer, await reader.pieces(text.values)
    reader.check_tokens(sum(window_tokens(len(p), spec.max_tokens, spec.stride) for p in pieces if len(p)))

    def windows() -> list[list[Window]]:
        return [tokenizer.windows(p, spec.max_tokens, spec.stride) if len(p) else [] for p in pieces]

    return pieces, await reader.build(len(text), windows)


async def question_windows(
    reader: Reader, model: Model, question: Texts, context: Texts, count: int
) -> list[list[Window]]:
    """Tokenise questions and contexts and cut the contexts, each as often as it is asked about.

    A question over its limit is refused, never cut.
    """
    spec = model.spec
    distinct = {value: i for i, value in enumerate(dict.fromkeys(context.values))}
    found = await reader.pieces([*question.values, *distinct])
    questions, read = found[: len(question)], found[len(question) :]
    contexts = [read[distinct[value]] for value in context.values]

    def pieces_of(index: int) -> tuple[Pieces, Pieces]:
        return questions[question.index(index)], contexts[context.index(index)]

    def check(index: int) -> int:
        asked, told = pieces_of(index)
        if len(asked) > spec.max_question_tokens:
            raise InputError(
                f"the question has {len(asked)} tokens and may have {spec.max_question_tokens} (max_question_tokens "
                "of the model), special ones not counted"
            )
        return window_tokens(len(told), spec.max_tokens, spec.stride, len(asked))

    reader.check_tokens(sum(each(count, check, question.where)))
    return await reader.build(
        count, lambda: each(count, lambda i: qa.encode(model.tokenizer, *pieces_of(i), spec), question.where)
    )
