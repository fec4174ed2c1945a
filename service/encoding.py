"""A request's texts as what the model reads: refused where they do not fit, cut where that is asked for.

Each raises what its `Reader` does, before anything is built that would not fit in the queue.
"""

from bert.errors import InputError
from bert.tasks import fill_mask, qa
from bert.tokenizer import Encoding, Pieces, Window
from service.reading import Reader, window_tokens
from service.registry import Model
from service.texts import Texts, each, pair_count


def encode_texts(
    reader: Reader, model: Model, text: Texts, pair: Texts | None, *, truncate: bool
) -> list[Encoding]:
    """Tokenise texts, or pairs of them.

    Raises the 422 that says how long each text over the model's length is.
    """
    tokenizer, limit = model.tokenizer, model.spec.max_tokens
    enough = limit if truncate else None
    first = reader.pieces(text.values, enough)
    if pair is None:
        return each(len(text), lambda i: tokenizer.single(first[i], limit, truncate=truncate), text.where)
    second = reader.pieces(pair.values, enough)

    def encode(index: int) -> Encoding:
        return tokenizer.pair(first[text.index(index)], second[pair.index(index)], limit, truncate=truncate)

    return each(pair_count(text, pair), encode, lambda i: f"{text.where(i)} with {pair.where(i)}")


def masked_encodings(reader: Reader, model: Model, text: Texts) -> list[Encoding]:
    """Tokenise texts with masks in them.

    Raises the 422 that names each text that has none, or is over the model's length.
    """
    reader.check_tokens(sum(value.count(fill_mask.MASK) for value in text.values))
    pieces, limit = fill_mask.pieces(reader, text.values), model.spec.max_tokens
    return each(len(text), lambda i: fill_mask.encode(model.tokenizer, pieces[i], limit), text.where)


def text_windows(reader: Reader, model: Model, text: Texts) -> tuple[list[Pieces], list[list[Window]]]:
    """Tokenise texts and cut them into windows; a text without a word has none."""
    spec, pieces = model.spec, reader.pieces(text.values)
    reader.check_tokens(sum(window_tokens(len(p), spec.max_tokens, spec.stride) for p in pieces if len(p)))
    windows = [model.tokenizer.windows(p, spec.max_tokens, spec.stride) if len(p) else [] for p in pieces]
    return pieces, windows


def question_windows(
    reader: Reader, model: Model, question: Texts, context: Texts, count: int
) -> list[list[Window]]:
    """Tokenise questions and contexts and cut the contexts, each as often as it is asked about.

    A question over its limit is refused, never cut.
    """
    spec, questions = model.spec, reader.pieces(question.values)
    distinct = {value: i for i, value in enumerate(dict.fromkeys(context.values))}
    read = reader.pieces(list(distinct))
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
    return each(count, lambda i: qa.encode(model.tokenizer, *pieces_of(i), spec), question.where)
