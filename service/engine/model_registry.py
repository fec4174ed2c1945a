"""The models that are loaded, and which of them answers a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert.errors import (
    ConfigError,
    InputError,
    ModelLeftOutError,
    UnknownModelError,
)
from service.engine.loaded_model import LeftOut, Model
from service.http.problems import shown


class NoModelError(UnknownModelError):
    """A request names no model, and none is loaded for its task."""

    def __str__(self) -> str:
        """Return the message."""
        return f"no model for {self.model} is loaded; loaded are {', '.join(self.known) or 'none'}"


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, and the name of each task's default."""

    models: Mapping[str, Model]
    defaults: Mapping[str, str]
    """Task → name; the name may be that of a bundle that was left out."""
    left_out: Sequence[LeftOut] = ()
    first: str = ""
    """Name of the bundle that comes first, which answers where neither model nor task is named; it may be left out."""

    @classmethod
    def of(
        cls,
        models: Sequence[Model],
        defaults: Mapping[str, str],
        left_out: Sequence[LeftOut] = (),
        first: str = "",
    ) -> "Registry":
        """Index the models by their names."""
        return cls({model.name: model for model in models}, defaults, left_out, first)

    def find(self, name: str | None, task: str | None) -> Model:
        """Return the model for a request.

        `task` None takes any. Raises UnknownModelError if there is none of that name, or no default;
        ModelLeftOutError if its bundle was left out; InputError if the model is for another task.
        """
        if name is None:
            name = self.defaults.get(task, "") if task is not None else self.first
            if not name:
                raise NoModelError(task or "any task", sorted(self.models))
        model = self.models.get(name)
        if model is None:
            self.check_not_left_out(name)
            raise UnknownModelError(shown(name), sorted(self.models))
        if task is not None and model.spec.task != task:
            fitting = sorted(other.name for other in self.models.values() if other.spec.task == task)
            raise InputError(
                f"model {name!r} is for {model.spec.task}, this endpoint needs one for {task}: "
                f"{', '.join(fitting) or 'none is loaded'}"
            )
        return model

    def check_not_left_out(self, name: str) -> None:
        """Raise ModelLeftOutError if the bundle of that name was left out."""
        for left_out in self.left_out:
            if left_out.name == name:
                raise ModelLeftOutError(name)


def default_names(bundles: Sequence[tuple[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return task → name of its default: the one chosen, else the first; `bundles` are names and tasks.

    A bundle that was left out stays a default: another model must not answer in its place unnoticed. Its task is empty where
    its manifest cannot be read, and then it can only be chosen. Raises ConfigError for a chosen one that is not there.
    """
    defaults = {task: name for name, task in reversed(bundles) if task}
    for task, name in chosen.items():
        if (name, task) not in bundles and (name, "") not in bundles:
            fitting = [other for other, its_task in bundles if its_task == task]
            raise ConfigError(f"default_models: {name!r} is no loaded {task} model; loaded are {fitting}")
        defaults[task] = name
    return defaults
