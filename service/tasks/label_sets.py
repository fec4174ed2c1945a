"""Labels that a request brings along, and the models that take them."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from unicodedata import normalize

from bert.errors import MAX_FIELD_ERRORS, FieldError, InvalidRequestError, displayed
from bert.tasks.zero_shot import Inference, inference_of, takes_labels
from service.engine.models import Model, Registry
from service.pipeline.inputs import TextLists, Texts, too_many_texts
from service.tasks.schema import RESULT_BYTES, text_size

PLACE = "{}"
"""Place of the label in a template."""
TEMPLATE = f"This example is {PLACE}."
"""Hypothesis of a label where none is asked for, as in `transformers`."""
OPEN_CLASSIFICATION = "open_classification"
"""Task of models that judge all labels in one run, and read each as it is sent."""
MAX_COMPOSED = 256
"""Longest label, in characters, that is compared in composed form (NFC): the time is quadratic in combining characters."""
SCORE_BYTES = 40
"""Bytes of a score and its names in JSON, about; the label comes on top."""


@dataclass(frozen=True, slots=True)
class LabelSets:
    """Labels and their hypotheses for texts: one set for all, or a set for each text."""

    labels: list[list[str]]
    hypotheses: TextLists

    @classmethod
    def of(
        cls,
        sent: list[str] | list[list[str]] | dict[str, str],
        template: str | None,
        model: Model,
        name: str = "labels",
        template_name: str = "template",
    ) -> "LabelSets":
        """Put each label into the template, by default that of the model's task; an object has hypotheses itself.

        The names are those of the fields.

        Raises InvalidRequestError for a template that has not one place for a label.
        """
        given = TextLists.of(name, sent)
        if given.keys is not None:
            if template is not None:
                message = "is for labels without hypotheses, and labels has one for each: leave it out"
                raise InvalidRequestError([FieldError(template_name, message)])
            return cls.as_sent(given)
        if template is None:
            template = PLACE if model.task == OPEN_CLASSIFICATION else TEMPLATE
        if template.count(PLACE) != 1:
            message = f"is {displayed(template)!r} and needs {PLACE} once, where the label goes"
            raise InvalidRequestError([FieldError(template_name, message)])
        hypotheses = [[template.replace(PLACE, label) for label in each] for each in given.lists]
        return cls(given.lists, TextLists(name, hypotheses, given.is_nested))

    @classmethod
    def as_sent(cls, given: TextLists) -> "LabelSets":
        """Take labels, or what is read for each, as they are."""
        return cls(given.lists if given.keys is None else [given.keys], given)

    def of_text(self, text: int) -> list[str]:
        """Return the labels of a text."""
        return self.labels[self.hypotheses.index(text)]

    def count(self, texts: int) -> int:
        """Return the number of labels of so many texts."""
        return sum(len(self.of_text(item)) for item in range(texts))

    def check(self, text: Texts, limit: int | None = None) -> None:
        """Refuse sets that do not fit the texts, bad labels, and more than `limit` labels of all texts."""
        if self.hypotheses.is_nested and len(self.labels) != len(text):
            counts = f"has {len(self.labels)} lists and {text.name} has {len(text)} texts"
            message = f"{counts}; send a list for each, or one for all"
            raise InvalidRequestError([FieldError(self.hypotheses.name, message)])
        if limit is not None and (total := self.count(len(text))) > limit:
            raise InvalidRequestError([too_many_texts(f"{self.hypotheses.name} of all texts", total, limit)])
        check_labels(self.labels, self.hypotheses)

    def size(self, texts: int, top_k: int | None) -> int:
        """Return the most bytes of the results of so many texts."""
        sizes = [sorted(map(text_size, each), reverse=True) for each in self.labels]
        of_sets = [
            RESULT_BYTES + each[0] + sum(size + SCORE_BYTES for size in each[:top_k]) for each in sizes
        ]
        return sum(of_sets) if self.hypotheses.is_nested else texts * of_sets[0]


def check_labels(sets: list[list[str]], texts: TextLists) -> None:
    """Refuse sets without a label, blank and equal labels, labels with NUL, and labels whose text is blank."""
    errors = [
        FieldError(texts.where(item), "has no label; send at least one")
        for item, labels in enumerate(sets)
        if not labels
    ]
    for item, labels in enumerate(sets):
        seen = set[str]()
        for number, (label, text) in enumerate(zip(labels, texts.lists[item], strict=True)):
            where = texts.where(item, number)
            composed = normalize("NFC", label) if len(label) <= MAX_COMPOSED else label
            if not label.strip() or not text.strip():
                errors.append(FieldError(where, "is empty"))
            elif "\0" in label or "\0" in text:
                errors.append(FieldError(where, "holds NUL, which no model reads"))
            elif composed in seen:
                errors.append(FieldError(where, f"is {displayed(label)!r}, which is there already"))
            seen.add(composed)
    if errors:
        raise InvalidRequestError(errors[:MAX_FIELD_ERRORS])


def check_pieces(found: Sequence[Sized], where: Callable[[int], str]) -> None:
    """Refuse labels that a tokenizer leaves without pieces; `where` names the label of an index."""
    if errors := [FieldError(where(n), "has no pieces") for n, each in enumerate(found) if not len(each)]:
        raise InvalidRequestError(errors[:MAX_FIELD_ERRORS])


def find_label_model(registry: Registry) -> Model | None:
    """Return the model that takes labels where none is named: a default of /classify if it does, else the first."""
    tasks = ("classification", OPEN_CLASSIFICATION)
    defaults = (registry.models.get(registry.defaults.get(task, "")) for task in tasks)
    models = [*(model for model in defaults if model is not None), *registry.models.values()]
    return next((model for model in models if model.task in tasks and takes_labels(model.spec)), None)


def inference_or_refuse(model: Model, name: str) -> Inference | None:
    """Return what the model's outputs mean, None where each label has one.

    Raises InvalidRequestError for a model that takes no labels of a request.
    """
    if (meaning := inference_of(model.spec)) is not None or model.task == OPEN_CLASSIFICATION:
        return meaning
    own = displayed(", ".join(model.spec.labels))
    message = (
        f"model {model.name!r} answers with its own ({own}); one of natural language inference takes others, if its labels "
        "say which is entailment and which contradiction (bert-export --labels)"
    )
    raise InvalidRequestError([FieldError(name, message)])
