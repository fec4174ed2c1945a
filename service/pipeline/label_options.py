"""Options of a request for labels: which of them a model can honour, and the windows of its long texts."""

from bert.errors import FieldError, InvalidRequestError
from bert.tasks.classification import Scoring, activation_of
from bert.tokenizer import Window
from service.engine.loaded_model import Model
from service.pipeline.inputs import Texts
from service.pipeline.tokenization import BoundedTokenizer, window_tokens

OVERLAPS = 8
"""Divisor of `max_tokens` that gives the stride of a model without its own: windows share an eighth."""


def check_scoring(model: Model, scoring: Scoring) -> None:
    """Refuse a threshold or temperature for a model whose scores are no probabilities."""
    if scoring.threshold is None and scoring.temperature is None:
        return
    if (scoring.activation or activation_of(model.spec)) != "identity":
        return
    given = {"threshold": scoring.threshold, "temperature": scoring.temperature}
    message = "is {}, and model {!r} gives numbers, not probabilities: leave it out"
    raise InvalidRequestError(
        [
            FieldError(name, message.format(value, model.name))
            for name, value in given.items()
            if value is not None
        ]
    )


def check_windows(pair: Texts | None, *, truncate: bool) -> None:
    """Refuse windows over pairs, and over texts that are cut."""
    if pair is not None:
        raise InvalidRequestError([FieldError("text_pair", "is not read in windows: leave windows out")])
    if truncate:
        message = "reads all of a long text, and truncate cuts it: send one of the two"
        raise InvalidRequestError([FieldError("windows", message)])


def window_stride(model: Model) -> int:
    """Return how many tokens two neighbouring windows of a long text share."""
    return model.spec.stride or model.spec.max_tokens // OVERLAPS


async def whole_windows(bounded: BoundedTokenizer, model: Model, text: Texts) -> list[list[Window]]:
    """Return each text's windows, at least one, which hold all of it. Raises what `BoundedTokenizer.pieces` does."""
    limit, stride = model.spec.max_tokens, window_stride(model)
    pieces, around = await bounded.pieces(text.values), model.tokenizer.form.special_tokens(1)
    bounded.note_unknown(pieces, text.where)
    bounded.check_tokens(sum(window_tokens(len(each), limit, stride, around) for each in pieces))
    return await bounded.build(
        len(text), lambda: [model.tokenizer.windows(each, limit, stride) for each in pieces]
    )
