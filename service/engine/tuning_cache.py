"""Cache of measured model speeds: NAME.tuning.json beside each bundle, one entry per machine.

A bundle is immutable and travels; its speed belongs to the machine. If the file cannot be written, nothing is cached.
"""

import functools
import json
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnxruntime

from bert.bundle import Bundle
from bert.files import atomic_write
from bert.manifest import CUDA
from bert.processor import instructions, processor_name
from service.engine.cost_curve import CostPoint, Measurement, fitted
from service.engine.models import OpenedModel
from service.engine.slot_layout import SlotLayout
from service.logs import LOGGER
from service.system import usable_cores

MAX_MACHINES = 32
"""Maximum entries in a file; the oldest is dropped first."""
MAX_TOKENS = 2**20
"""Maximum batch size in tokens of a plausible entry."""
MIN_SECONDS = 1e-6
"""Minimum time of a batch of a plausible entry; no shorter one is measured."""


def cache_file(bundle: Bundle) -> Path:
    """Return the path of a bundle's cache."""
    return bundle.folder.with_name(f"{bundle.folder.resolve().name}.tuning.json")


def machine_of(model: OpenedModel, layout: SlotLayout) -> dict[str, object]:
    """Return everything that a measurement of this model depends on."""
    return {
        **({"gpu": _gpu()} if model.provider == CUDA else {}),
        "cpu": processor_name(),
        "instructions": instructions(),
        "cores": usable_cores(),
        "slots": layout.slots,
        "threads": layout.threads,
        "wide_slots": layout.slots_for_one_text if model.multi_slot_engine is not None else 1,
        "provider": model.provider,
        "onnxruntime": onnxruntime.__version__,
        "model_sha256": model.bundle.manifest.files[model.bundle.graph],
    }


def read(bundle: Bundle, machine: dict[str, object]) -> Measurement | None:
    """Return the cached measurement of a bundle on this machine; None if there is none that can be read."""
    entries = (entry for entry in _entries(cache_file(bundle)) if entry.get("machine") == machine)
    if (entry := next(entries, None)) is None:
        return None
    try:
        curve = tuple(
            CostPoint(int(p["tokens"]), float(p["seconds"]), float(p["wall_s"])) for p in entry["curve"]
        )
        from_tokens, cost, guess = entry["wide_from"], entry["cost"], bundle.manifest.expected_cost
        found = Measurement(
            curve,
            None if from_tokens is None else int(from_tokens),
            None if cost is None else fitted(guess, cost["attention_width"], cost["run_tokens"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return found if _is_sound(found) else None


def _is_sound(measured: Measurement) -> bool:
    """Tell whether a measurement is plausible: rising sizes, times of at least MIN_SECONDS."""
    sizes = [point.tokens for point in measured.curve]
    times = [s for point in measured.curve for s in (point.seconds, point.wall_s or point.seconds)]
    return (
        bool(sizes)
        and sizes == sorted(set(sizes))
        and sizes[0] > 0
        and sizes[-1] <= MAX_TOKENS
        and all(MIN_SECONDS <= seconds < math.inf for seconds in times)
    )


def write(bundle: Bundle, machine: dict[str, object], measured: Measurement) -> bool:
    """Replace this machine's entry; return False if the file cannot be written."""
    file = cache_file(bundle)
    others = [entry for entry in _entries(file) if entry.get("machine") != machine]
    entry = {
        "machine": machine,
        "curve": [asdict(point) for point in measured.curve],
        "wide_from": measured.multi_slot_tokens,
        "cost": asdict(measured.cost) if measured.cost else None,
    }
    try:
        atomic_write(file, json.dumps([*others, entry][-MAX_MACHINES:], indent=1))
    except OSError as error:
        LOGGER.debug("%s is not written: %s", file, error)
        return False
    return True


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        LOGGER.warning("%s cannot be read, and the models are measured again: %s", file, error)
        return []
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []


@functools.cache
def _gpu() -> str:
    """Return the first GPU's name, empty if the driver does not tell."""
    with suppress(OSError):
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("Model"):
                    return line.partition(":")[2].strip()
    return ""
