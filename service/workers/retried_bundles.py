"""Bundles that were left out are tried again when their files change, and are served once they can be."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from service.autotune import warmup
from service.autotune.tuning_cache import Measurement
from service.engine.bundle_folders import LeftOutFolders, left_out
from service.engine.bundle_loader import LoadedBundles, duplicate_error
from service.engine.loaded_model import LeftOut, Model, OpenedModel
from service.engine.model_registry import Registry
from service.logs import LOGGER
from service.scheduling.scheduler import Scheduler
from service.scheduling.served_models import ServedModels
from service.workers.model_runner import ModelRunner

RETRY_EVERY_S = 1.0
"""Seconds between two looks at the files of bundles that were left out."""


class RetriedBundles:
    """The bundles of a start, of which more may be served later."""

    def __init__(self, loaded: LoadedBundles, runner: ModelRunner, scheduler: Scheduler) -> None:
        """Take what was loaded, and what runs it."""
        self._open, self._failed = loaded.open, loaded.failed
        self._runner, self._scheduler = runner, scheduler
        # Closed models lack the multi-slot sessions: those that are not faster are freed with `loaded`.
        self._found: dict[Path, Model | LeftOut] = {
            folder: found.closed() if isinstance(found, OpenedModel) else found
            for folder, found in loaded.found.items()
        }
        self._left_out = LeftOutFolders(
            {
                folder: loaded.files[folder]
                for folder, found in self._found.items()
                if isinstance(found, LeftOut)
            }
        )

    def now(self) -> ServedModels:
        """Return what is served."""
        tokens, layout = self._runner.running_tokens, self._runner.layout
        return ServedModels(
            self._registry(self._found), self._scheduler, self._runner.budgets, tokens, layout.slots
        )

    async def changes(self) -> AsyncIterator[ServedModels]:
        """Yield what is served after each bundle that was tried again, until none is left out."""
        while self._left_out:
            await asyncio.sleep(RETRY_EVERY_S)
            for folder in await asyncio.to_thread(self._left_out.changed):
                before = self._found[folder]
                assert isinstance(before, LeftOut)
                self._found[folder] = await self._try(folder, before)
                yield self.now()

    async def _try(self, folder: Path, before: LeftOut) -> Model | LeftOut:
        """Load a bundle and let it run, or say why that fails now."""
        try:
            opened, measured = await asyncio.to_thread(self._opened, folder)
            self._registry(
                {**self._found, folder: opened}
            )  # raises if it cannot be the default that was chosen
        except Exception as error:
            reason = left_out(folder, error).reason
            LOGGER.error("model %s is still left out: %s", before.name, reason)
            return replace(before, reason=reason)
        self._runner.add(opened, measured)
        self._left_out.remove(folder)
        LOGGER.warning("model %s was left out and is served now", opened.name)
        return opened.closed()

    def _opened(self, folder: Path) -> tuple[OpenedModel, Measurement]:
        """Open and measure a bundle beside the others; raises what prevents that."""
        opened, settings = self._open(folder), self._runner.settings
        if (error := duplicate_error(opened, self._found.values())) is not None:
            raise error
        layout, batch_tokens = self._runner.layout, settings.batch_tokens
        measured = warmup.measure([opened], layout, batch_tokens, use_cache=settings.keep_tuning)
        return opened, measured[opened.name]

    def _registry(self, found: dict[Path, Model | LeftOut]) -> Registry:
        return Registry.of(found, self._failed, self._runner.settings.default_models)
