"""Loaded models by name, and the default model of each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert.errors import (
    FieldError,
    InvalidRequestError,
    ModelLeftOutError,
    NoDefaultModelError,
    UnknownModelError,
)
from service.engine.bundle_folders import default_names
from service.engine.loaded_model import Model, SkippedBundle


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, and the name of each task's default."""

    models: Mapping[str, Model]
    defaults: Mapping[str, str]
    """Task → name; the name may be that of a bundle that was left out."""
    left_out: Sequence[SkippedBundle] = ()
    first: str = ""
    """Name of the first bundle, the default for requests that name no task; it may be left out."""

    @staticmethod
    def of(every: Sequence[Model | SkippedBundle], chosen: Mapping[str, str]) -> "Registry":
        """Return the registry of all bundles, the skipped ones included.

        Raises ConfigError for a `chosen` default that is not there.
        """
        names = [(each.name, each.task) for each in every]
        return Registry(
            {each.name: each for each in every if isinstance(each, Model)},
            default_names(names, chosen),
            [each for each in every if isinstance(each, SkippedBundle)],
            names[0][0],
        )

    def find(self, name: str | None, task: str | None) -> Model:
        """Return the model for a request; `task` None takes any.

        Raises UnknownModelError if there is no model of that name, or no default; ModelLeftOutError if its bundle was
        left out; InvalidRequestError if the model is for another task.
        """
        if name is None:
            name = self.defaults.get(task, "") if task is not None else self.first
            if not name:
                raise NoDefaultModelError(task or "any task", sorted(self.models))
        model = self.models.get(name)
        if model is None:
            if name in (left_out.name for left_out in self.left_out):
                raise ModelLeftOutError(name)
            raise UnknownModelError(name, sorted(self.models))
        if task is not None and model.spec.task != task:
            fitting = sorted(other.name for other in self.models.values() if other.spec.task == task)
            message = (
                f"model {name!r} is for {model.spec.task}, this endpoint needs one for {task}: "
                f"{', '.join(fitting) or 'none is loaded'}"
            )
            raise InvalidRequestError([FieldError("model", message)])
        return model
