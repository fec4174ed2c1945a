"""Open the models, measure them, and put them behind one scheduler."""

import asyncio
import time
from dataclasses import replace

from service.autotune import warmup
from service.cpu_count import usable_cores
from service.engine.bundle_folders import NONE_KNOWN, Known
from service.engine.model_registry import default_names
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.served_models import ServedModels
from service.settings import ServeSettings
from service.workers.model_runner import ModelRunner
from service.workers.retried_bundles import RetriedBundles


async def open_models(settings: ServeSettings, metrics: Metrics, known: Known = NONE_KNOWN) -> ServedModels:
    """Open the bundles, measure them and start the scheduler; raises what prevents that.

    `known` are the bundles that an earlier engine process found.
    """
    began, layout = time.monotonic(), warmup.slot_layout(settings, usable_cores(), known)
    loaded = await asyncio.to_thread(warmup.load, settings, layout, known)
    default_names(loaded.names, settings.default_models)  # raises before the models are measured
    for each in loaded.left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    measured = await asyncio.to_thread(
        warmup.measure, loaded.models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    runner = ModelRunner(settings, layout)
    for model in loaded.models:
        runner.add(model, measured[model.name])
    served = RetriedBundles(loaded, runner, runner.start(metrics))
    LOGGER.info("%d models opened in %.1f s", len(loaded.models), time.monotonic() - began)
    return replace(served.now(), changes=served.changes() if loaded.left_out else None)
