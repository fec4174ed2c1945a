"""What can be wrong with settings beyond their types, found before anything listens or loads."""

from bert.bundle import read_bundle
from service.cpus import usable_cores
from service.measuring import planned
from service.registry import bundle_folders, default_names
from service.settings import ServeSettings


def check_settings(settings: ServeSettings) -> None:
    """Raise ConfigError for settings that this machine or these bundles cannot have.

    Raises BundleError where there are no bundles, or one's manifest cannot be read.
    """
    planned(settings, usable_cores())
    found = [read_bundle(folder, verify_hashes=False).manifest for folder in bundle_folders(settings.bundles)]
    default_names([(manifest.name, manifest.task.task) for manifest in found], settings.default_models)
