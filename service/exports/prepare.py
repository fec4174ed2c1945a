"""Before the service starts: a bundle for every model that the settings name."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert.errors import BertError, BundleError, BundleIntegrityError
from service.exports import export_process
from service.exports.export_cache import FIRST, ExportCache, bundle_fault, cache_of
from service.exports.named_model import NamedModel, named_models
from service.exports.store import with_fetched
from service.logs import LOGGER
from service.settings import ServeSettings

_CUDA = "capi/libonnxruntime_providers_cuda.so"
"""Library in a package of ONNX Runtime with CUDA. The parent process imports no ONNX Runtime to ask for its providers."""


def prepare(settings: ServeSettings, *, answer_first: bool = False) -> ServeSettings:
    """Return the settings with the bundles of their URLs and models, fetched and exported first if the cache lacks them.

    With `answer_first` a model that will be in 8 bits is exported in float32 only; `better_bundles` of the settings then
    says what is still to be exported.
    A model that cannot be exported is left out; with `strict`, or where there is nothing else to serve, its error is raised.
    Raises ConfigError if two models would have one name, or if the cache is in a home that the user lacks; and as
    `Store.fetch_first` does.
    """
    settings = with_fetched(settings)
    if not settings.model:
        return settings
    final = cache_of(settings)
    is_first = answer_first and settings.model_precision == "auto" and not _has_cuda()
    exports = _Exports(settings, final, replace(final, precision=FIRST) if is_first else final)
    bundles = list(settings.bundles) if "bundles" in settings.model_fields_set else []
    failed: dict[str, str] = {}
    for model in named_models(settings.model):
        try:
            bundles.append(exports.bundle_of(model))
        except BertError as error:
            if settings.strict:
                raise
            failed[model.name] = str(error)
    if not bundles:
        raise BundleError("; ".join(failed.values()))
    return settings.with_exports(bundles, failed, exports.better)


def _has_cuda() -> bool:
    spec = importlib.util.find_spec("onnxruntime")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any((Path(place) / _CUDA).is_file() for place in places)


@dataclass(frozen=True, slots=True)
class _Exports:
    settings: ServeSettings
    final: ExportCache
    """Bundles as the settings want them."""
    first: ExportCache
    """Bundles to start with, where there is none of the others; they may be the same."""
    better: dict[Path, Path] = field(default_factory=dict)
    """Bundles to start with that were taken: folder → that of the final one."""

    def bundle_of(self, model: NamedModel) -> Path:
        """Return the model's bundle; one that was exported before is found without the network."""
        hub = model.hub
        look_up = hub is not None and not hub.is_pinned and self.settings.update_models
        if not look_up and (found := self._exported(model)) is not None:
            return found
        with self.first.lock(model) as lock:
            if not look_up and (found := self._exported(model)) is not None:
                return found  # by the process that was waited for
            return self._export(model, lock)

    def _exported(self, model: NamedModel, commit: str | None = None) -> Path | None:
        """Return the best bundle that is in the cache; None if there is none, or no commit is known."""
        if (commit := commit or self.final.commit(model)) is None:
            return None
        for cache in self._caches():
            bundle = cache.bundle(model, commit)
            if bundle_fault(bundle, verify_hashes=self.settings.verify_hashes) is None:
                return self._taken(model, commit, bundle)
        return None

    def _caches(self) -> Iterator[ExportCache]:
        yield self.final
        if self.first != self.final:
            yield self.first

    def _taken(self, model: NamedModel, commit: str, bundle: Path) -> Path:
        """Return a bundle, noted if it is to be replaced."""
        if (final := self.final.bundle(model, commit)) != bundle:
            self.better[bundle] = final
        return bundle

    def _export(self, model: NamedModel, lock: int) -> Path:
        hub, as_log = model.hub, self.settings.log_format == "json"
        if hub is None or hub.is_pinned:
            commit = self.final.commit(model)
        else:
            try:
                commit = export_process.look_up(model, lock, as_log=as_log)
            except BundleError as error:
                if (found := self._exported(model)) is None:
                    raise
                LOGGER.warning("%s is served as it was exported before: %s", model.name, error)
                return found
        assert commit is not None
        if (bundle := self._exported(model, commit)) is None:
            bundle = self.first.bundle(model, commit)
            fault = bundle_fault(bundle, verify_hashes=self.settings.verify_hashes)
            if isinstance(fault, BundleIntegrityError):
                LOGGER.warning("the export of %s is damaged and is made again: %s", model.name, fault)
            LOGGER.info("%s is exported, once for all starts, to %s", model.checkpoint, bundle)
            export_process.export(model, commit, bundle, self.first.precision, lock, as_log=as_log)
            self._taken(model, commit, bundle)
        try:
            self.final.remember(model, commit)
        except OSError as error:
            raise BundleError(f"{self.final.folder} cannot be written: {error.strerror}") from None
        return bundle
