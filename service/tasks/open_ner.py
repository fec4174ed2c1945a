"""Entities of labels that the request brings along: /ner with a model for them."""

from collections.abc import Iterable
from itertools import accumulate, chain

from bert.encoding import Window
from bert.errors import FieldError, InputError, InvalidRequestError
from bert.tasks.ner import Entity
from bert.tasks.open_ner.decode import Choosing, decode
from bert.tasks.open_ner.inputs import Words, prompt_ids, room, windows, word_bounds
from service.pipeline.inputs import TextLists, Texts
from service.pipeline.pipeline import is_short_text
from service.tasks.label_sets import check_labels
from service.tasks.schema import spans_size
from service.tasks.task import Call

TASK = "open_ner"


async def find_entities(call: Call, text: Texts, labels: TextLists, how: Choosing) -> list[list[Entity]]:
    """Return each text's entities of these labels; long texts are read in windows, each with all labels."""
    spec, names = call.model.spec, labels.keys or labels.lists[0]
    assert spec.label_prompt is not None
    prompt = spec.label_prompt
    check_labels([names], labels)
    words, cut = await _windows(call, text, labels)
    outputs = await call.infer_windows(cut)

    def read() -> list[list[Entity]]:
        found = [
            decode(text.values[i], words[i].bounds, names, cut[i], outputs[i], prompt, how)
            for i in range(len(text))
        ]
        call.note_size(text, spans_size(chain.from_iterable(found)))
        return found

    entities = await call.decode(len(text) * len(names), read, text)
    # Labels of requests have no bound, and each that is counted by name is a series in the metrics.
    call.note_outcomes(("other", entity.score) for each in entities for entity in each)
    return entities


async def _windows(call: Call, text: Texts, labels: TextLists) -> tuple[list[Words], list[list[Window]]]:
    """Return each text's words and its windows, none for a text without words.

    Raises what `BoundedTokenizer.pieces` does, and InvalidRequestError for labels that leave a text no room.
    """
    spec, tokenizer, bounded = call.model.spec, call.model.tokenizer, call.tokenizer(only_ids=True)
    assert spec.label_prompt is not None
    prompt = spec.label_prompt

    def split() -> tuple[list[list[tuple[int, int]]], list[str]]:
        bounds = [word_bounds(value) for value in text.values]
        return bounds, [value[a:b] for value, at in zip(text.values, bounds, strict=True) for a, b in at]

    with call.context.timed("tokenize"):
        is_short = is_short_text(text.values)
        bounds, every = split() if is_short else await call.pipeline.run_in_thread(split)
        sent = labels.lists[0]
        found = [each.ids for each in await bounded.pieces([*sent, *every])]
        of_labels, of_words = found[: len(sent)], found[len(sent) :]
        before = prompt_ids(of_labels, prompt)
        try:
            room(len(before[0]), spec)
        except InputError as error:
            raise InvalidRequestError([FieldError(labels.name, str(error))]) from None
        empty = [n for n, ids in enumerate(of_labels) if not len(ids)]
        if empty:
            raise InvalidRequestError([FieldError(labels.where(0, n), "has no pieces") for n in empty])

        def build() -> tuple[list[Words], list[list[Window]]]:
            ends = accumulate(map(len, bounds))
            words = [
                Words.of(at, of_words[end - len(at) : end]) for at, end in zip(bounds, ends, strict=True)
            ]
            return words, [windows(each, before, tokenizer, spec) for each in words]

        return await bounded.build(len(text), build)


def refuse_fields(names: Iterable[str], why: str) -> None:
    """Raise InvalidRequestError if a request has fields that its model does not read."""
    if errors := [FieldError(name, why) for name in names]:
        raise InvalidRequestError(errors)
