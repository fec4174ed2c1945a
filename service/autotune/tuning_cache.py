"""What was measured of a model's speed, kept in a file beside its bundle: NAME.tuning.json, an entry for each machine.

A bundle is immutable and travels; how fast it runs is the machine's. Where nothing can be written nothing is kept.
"""

import functools
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from bert.bundle import Bundle
from bert.processor import instructions, processor_name
from service.autotune.cost_curve import Plan, Point
from service.cpu_count import usable_cores
from service.engine.onnx_engine import CUDA
from service.logs import LOGGER

MOST_MACHINES = 32
"""Entries of a file; the oldest goes first."""
MOST_TOKENS = 2**20
"""Of a batch; no curve goes so far."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's speed on one slot, and from how many tokens a lone text is faster on several, None if it never is."""

    curve: tuple[Point, ...]
    wide_from: int | None = None


def kept_file(bundle: Bundle) -> Path:
    """Return where a bundle's measurements are kept."""
    return bundle.folder.with_name(f"{bundle.folder.resolve().name}.tuning.json")


def machine_of(bundle: Bundle, provider: str, plan: Plan, wide_slots: int) -> dict[str, object]:
    """Return all that a measurement depends on."""
    on_gpu = {"gpu": _gpu()} if provider == CUDA else {}
    return {
        **on_gpu,
        "cpu": processor_name(),
        "instructions": instructions(),
        "cores": usable_cores(),
        "slots": plan.slots,
        "threads": plan.threads,
        "wide_slots": wide_slots,
        "provider": provider,
        "onnxruntime": onnxruntime.__version__,
        "model_sha256": bundle.manifest.files[bundle.graph],
    }


def read(bundle: Bundle, machine: dict[str, object]) -> Measured | None:
    """Return what was kept of a bundle on this machine, None if nothing was, or nothing that can be read."""
    for entry in _entries(kept_file(bundle)):
        if entry.get("machine") == machine:
            try:
                curve = tuple(
                    Point(int(p["tokens"]), float(p["seconds"]), float(p["wall_s"])) for p in entry["curve"]
                )
                wide = entry["wide_from"]
                found = Measured(curve, None if wide is None else int(wide))
                return found if _is_sound(found) else None
            except (KeyError, TypeError, ValueError, OverflowError):
                return None
    return None


def _is_sound(measured: Measured) -> bool:
    """Tell whether this can have been measured: rising sizes, times above 0."""
    sizes = [point.tokens for point in measured.curve]
    times = [point.seconds for point in measured.curve] + [
        point.wall_s for point in measured.curve if point.wall_s
    ]
    return (
        bool(sizes)
        and sizes == sorted(set(sizes))
        and sizes[0] > 0
        and sizes[-1] <= MOST_TOKENS
        and all(0 < seconds < math.inf for seconds in times)
    )


def keep(bundle: Bundle, machine: dict[str, object], measured: Measured) -> bool:
    """Write a measurement in place of an earlier one of this machine; False where that is not allowed."""
    file = kept_file(bundle)
    others = [entry for entry in _entries(file) if entry.get("machine") != machine]
    entry = {
        "machine": machine,
        "curve": [asdict(point) for point in measured.curve],
        "wide_from": measured.wide_from,
    }
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps([*others, entry][-MOST_MACHINES:], indent=1), encoding="utf-8")
        aside.replace(file)
    except OSError as error:
        LOGGER.debug("%s is not written: %s", file, error)
        return False
    return True


def _entries(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        LOGGER.warning("%s cannot be read, and the models are measured again: %s", file, error)
        return []
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []


@functools.cache
def _gpu() -> str:
    """Return what the first GPU calls itself, where the driver tells."""
    with suppress(OSError):
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("Model"):
                    return line.partition(":")[2].strip()
    return ""
