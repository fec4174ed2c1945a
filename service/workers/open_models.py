"""Open the models, measure them, and put them behind one scheduler."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from bert.bundle import manifest_sha256
from service.engine.bundle_folders import FoundBundle, FoundBundles, find_bundles
from service.engine.bundle_loader import BundleLoader, opened
from service.engine.measure import measure
from service.engine.models import Registry, SkippedBundle
from service.engine.slot_layout import slot_layout
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.scheduler_protocol import ServedModels
from service.settings import ServeSettings
from service.system import usable_cores
from service.workers.generations import Generations, Record
from service.workers.scheduled_models import ScheduledModels
from service.workers.served_bundles import UNLOADED, ServedBundles


async def open_models(
    settings: ServeSettings, metrics: Metrics, found: FoundBundles | None = None
) -> ServedModels:
    """Return what a process serves that both tokenises and has the engine; see `open_bundles`."""
    bundles = await open_bundles(settings, metrics, found)
    return replace(bundles.now(), changes=bundles.changes(), manage=bundles.manage)


async def open_bundles(
    settings: ServeSettings,
    metrics: Metrics,
    found: FoundBundles | None = None,
    *,
    is_successor: bool = False,
    keep_tokenizers: bool = True,
    record: Record | None = None,
) -> ServedBundles:
    """Open the bundles, measure them and start the scheduler; raises what prevents that.

    `found` are the bundles that the service found when it started, by default those that are there now. A successor serves
    what it can rather than nothing, also with the setting `strict`; in `record` is what was served before.
    """
    began, cores = time.monotonic(), usable_cores()
    found = find_bundles(settings.bundles) if found is None else found
    record = Record() if record is None else record
    found = {
        **found,
        **{folder: FoundBundle(*each) for folder, each in record.names.items() if folder not in found},
    }
    layout = slot_layout(settings, cores, found)
    loader = BundleLoader.of(
        settings, layout, {folder: each for folder, each in found.items() if folder not in record.unloaded}
    )
    sources = sources_of(settings, record)
    loaded = await asyncio.to_thread(
        loader.load, cores, strict=settings.strict and not is_successor, sources=sources
    )
    unloaded = {
        folder: SkippedBundle(found[folder].name, found[folder].task, UNLOADED) for folder in record.unloaded
    }
    loaded = {folder: unloaded.get(folder) or loaded[folder] for folder in found}
    # What is loaded from its copy is not replaced by files that were there before.
    copied = [folder for folder in sources if sources[folder] != record.sources[folder]]
    loader.tried |= {record.sources[folder]: record.tried[folder] for folder in copied}
    every = [*loaded.values(), *loader.failed]
    # Raises before the models are measured.
    for each in Registry.of(every, settings.default_models, [*unloaded.values()]).left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    models = opened(loaded)
    measured = await asyncio.to_thread(
        measure, models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    scheduled = ScheduledModels(settings, layout)
    for model in models:
        scheduled.add(model, measured[model.id])
    served = ServedBundles(
        loaded, loader, scheduled, scheduled.start(metrics), keep_tokenizers=keep_tokenizers, record=record
    )
    LOGGER.info("%d models opened in %.1f s", len(models), time.monotonic() - began)
    return served


def sources_of(settings: ServeSettings, record: Record) -> dict[Path, Path]:
    """Return from where a successor loads what was served: the copy, else the folder, whatever is there now."""
    generations, sources = Generations.of(settings), dict[Path, Path]()
    for folder, sha256 in record.hashes.items():
        sources[folder] = record.sources[folder]
        if record.keeps and generations.has(sha256):
            sources[folder] = generations.place(sha256)
        elif manifest_sha256(sources[folder]) != sha256:
            LOGGER.error(
                "%s was changed since it was loaded, and there is no copy of what was served", sources[folder]
            )
    return sources
