"""Exports in the background: the bundles that replace those which a service began with."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Protocol, Self

from bert.errors import BertError, BundleError
from bert.files import atomic_write
from service.exports import export_process
from service.exports.export_cache import bundle_fault, cache_of
from service.exports.named_model import NamedModel, named_models
from service.exports.progress import progress_file
from service.logs import LOGGER
from service.settings import ServeSettings

POLL_S = 0.2


class Serving(Protocol):
    """A service that runs."""

    def is_loaded(self) -> bool:
        """Tell whether its models are loaded; nothing is exported before."""
        ...

    def is_stopping(self) -> bool:
        """Tell whether it is to end; the export ends first."""
        ...


class BetterExports:
    """Exports the settings' `better_bundles`, one after the other, while the block lasts. What fails is not tried again."""

    def __init__(self, settings: ServeSettings, serving: Serving) -> None:
        """Begin with the block."""
        self._settings, self._serving, self._ended = settings, serving, Event()
        self._cache = cache_of(settings)
        self._wanted = {bundle.name: bundle for bundle in settings.better_bundles.values()}
        self._thread = Thread(target=self._run, name="exports", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child, which leaves nothing half."""
        self._ended.set()
        self._thread.join()

    def _is_stopped(self) -> bool:
        return self._ended.is_set() or self._serving.is_stopping()

    def _run(self) -> None:
        for bundle in self._wanted.values():
            with suppress(OSError):  # an earlier service's file; an export that runs writes it again at once
                progress_file(bundle).unlink(missing_ok=True)
        while not self._serving.is_loaded():
            if self._ended.wait(POLL_S) or self._is_stopped():
                return
        for model in named_models(self._settings.model):
            if model.name not in self._wanted:
                continue
            try:
                self._export(model, self._wanted[model.name])
            except (BertError, OSError) as error:
                if self._is_stopped():
                    return
                LOGGER.error("%s goes on in float32, as its export in 8 bits failed: %s", model.name, error)

    def _export(self, model: NamedModel, bundle: Path) -> None:
        """Export a model's better bundle, if no other process makes it."""
        commit = self._cache.commit(model)
        if commit is None or self._cache.bundle(model, commit) != bundle:
            with self._progress_of(bundle):
                raise BundleError(
                    f"{model.checkpoint} is not what it was at the start; start the service again"
                )
        with self._cache.lock(model, self._is_stopped) as lock:
            if self._is_stopped() or bundle_fault(bundle, verify_hashes=True) is None:
                return
            LOGGER.info("%s is served in float32, and is exported in 8 bits to %s", model.name, bundle)
            with self._progress_of(bundle):
                export_process.export(
                    model,
                    commit,
                    bundle,
                    self._cache.precision,
                    lock,
                    as_log=True,
                    is_stopped=self._is_stopped,
                )

    @contextmanager
    def _progress_of(self, bundle: Path) -> Iterator[None]:
        """Keep the bundle's progress file: empty until the child writes it, and with the reason if the child fails."""
        file, error = progress_file(bundle), ""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, "{}")
            yield
        except (BertError, OSError) as raised:
            error = str(raised)
            raise
        finally:
            with suppress(OSError):  # a full disk: no progress is better than that of a while ago
                file.unlink(missing_ok=True)
                if error and not self._is_stopped():
                    atomic_write(file, json.dumps({"error": error}))
