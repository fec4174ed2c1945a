"""What can be wrong with settings beyond their types, found before anything listens or loads."""

from service.autotune.warmup import slot_layout
from service.cpu_count import usable_cores
from service.engine.bundle_folders import read_manifests
from service.engine.loaded_model import LeftOut
from service.engine.model_registry import default_names
from service.settings import ServeSettings


def check_settings(settings: ServeSettings) -> None:
    """Raise ConfigError for settings that this machine or these bundles cannot have.

    Raises BundleError where there are no bundles or, if settings are strict, one's manifest cannot be read.
    """
    slot_layout(settings, usable_cores())
    found = read_manifests(settings.bundles, strict=settings.strict)
    names = [(each.name, each.task if isinstance(each, LeftOut) else each.task.task) for each in found]
    default_names(names, settings.default_models)
