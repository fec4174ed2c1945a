"""Before the service starts: a bundle for every model that the settings name."""

from pathlib import Path

from bert.errors import BertError, BundleError, BundleIntegrityError, ConfigError
from service.exports import export_process
from service.exports.export_cache import ExportCache, bundle_fault
from service.exports.named_model import NamedModel, named_models
from service.logs import LOGGER
from service.settings import ServeSettings


def prepare(settings: ServeSettings) -> ServeSettings:
    """Return the settings with the bundles of their models, which are exported first where they are not in the cache.

    A model that cannot be exported is left out; with `strict`, or where there is nothing else to serve, its error is raised.
    Raises ConfigError if two models would have one name, or if the cache is in a home that the user lacks.
    """
    cache = ExportCache(_expanded(settings.model_cache), settings.model_precision)
    bundles = list(settings.bundles) if "bundles" in settings.model_fields_set else []
    failed: dict[str, str] = {}
    for model in named_models(settings.model):
        try:
            bundles.append(_bundle_of(model, cache, settings))
        except BertError as error:
            if settings.strict:
                raise
            failed[model.name] = str(error)
    if not bundles:
        raise BundleError("; ".join(failed.values()))
    return settings.with_exports(bundles, failed)


def _expanded(folder: Path) -> Path:
    try:
        return folder.expanduser()
    except RuntimeError:  # a container's user may have neither HOME nor an entry in /etc/passwd
        raise ConfigError(
            f"model_cache {folder}: this user has no home; name a folder with --model-cache"
        ) from None


def _bundle_of(model: NamedModel, cache: ExportCache, settings: ServeSettings) -> Path:
    """Return the model's bundle; one that was exported before is found without the network."""
    hub = model.hub
    look_up = hub is not None and not hub.is_pinned and settings.update_models
    if not look_up and (found := _exported(model, cache, settings)) is not None:
        return found
    with cache.lock(model) as lock:
        if not look_up and (found := _exported(model, cache, settings)) is not None:
            return found  # by the process that was waited for
        return _export(model, cache, settings, lock)


def _exported(model: NamedModel, cache: ExportCache, settings: ServeSettings) -> Path | None:
    commit = cache.commit(model)
    if commit is None:
        return None
    folder = cache.bundle(model, commit)
    return folder if bundle_fault(folder, verify_hashes=settings.verify_hashes) is None else None


def _export(model: NamedModel, cache: ExportCache, settings: ServeSettings, lock: int) -> Path:
    hub, as_log = model.hub, settings.log_format == "json"
    if hub is None or hub.is_pinned:
        commit = cache.commit(model)
    else:
        try:
            commit = export_process.look_up(model, lock, as_log=as_log)
        except BundleError as error:
            if (found := _exported(model, cache, settings)) is None:
                raise
            LOGGER.warning("%s is served as it was exported before: %s", model.name, error)
            return found
    assert commit is not None
    bundle = cache.bundle(model, commit)
    if fault := bundle_fault(bundle, verify_hashes=settings.verify_hashes):
        if isinstance(fault, BundleIntegrityError):
            LOGGER.warning("the export of %s is damaged and is made again: %s", model.name, fault)
        LOGGER.info("%s is exported, once for all starts, to %s", model.checkpoint, bundle)
        export_process.export(model, commit, bundle, cache.precision, lock, as_log=as_log)
    try:
        cache.remember(model, commit)
    except OSError as error:
        raise BundleError(f"{cache.folder} cannot be written: {error.strerror}") from None
    return bundle
