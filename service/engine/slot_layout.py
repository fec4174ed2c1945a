"""Division of the cores into engine slots."""

from dataclasses import dataclass

from bert.errors import ConfigError
from service.engine.bundle_folders import FoundBundles, all_on_gpu
from service.settings import ServeSettings

GPU_SLOTS = 2
"""Batches at once on a GPU: one runs while the next is packed and copied."""
MAX_SLOTS_FOR_ONE_TEXT = 4
"""Maximum slots that one text may use: threads synchronise after each operator, so more gain nothing."""


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Number of engine slots, and threads in each."""

    slots: int
    threads: int

    @property
    def slots_for_one_text(self) -> int:
        """Return the number of slots that a text alone in the engine may use together; 1 if that gains nothing."""
        return min(self.slots, MAX_SLOTS_FOR_ONE_TEXT) if self.threads == 1 else 1


def slot_layout(settings: ServeSettings, cores: int, found: FoundBundles) -> SlotLayout:
    """Divide the cores, or a GPU if all models are for one. Raises ConfigError."""
    slots, threads = settings.engine_slots, settings.engine_threads_per_slot
    return lay_out_slots(cores, slots, threads, on_gpu=all_on_gpu(found))


def lay_out_slots(
    cores: int, slots: int | None = None, threads: int | None = None, *, on_gpu: bool = False
) -> SlotLayout:
    """Divide the cores into slots: one thread each by default; a GPU has GPU_SLOTS.

    Raises ConfigError if slots x threads exceed the cores: more busy threads than cores slow each other down.
    """
    if on_gpu:
        return SlotLayout(slots or GPU_SLOTS, threads or 1)
    if slots is None:
        slots = max(1, cores // (threads or 1))
    if threads is None:
        threads = max(1, cores // slots)
    if slots * threads > cores and (slots, threads) != (1, 1):
        raise ConfigError(
            f"engine_slots ({slots}) x engine_threads_per_slot ({threads}) is more than the {cores} cores "
            "that this process may use"
        )
    return SlotLayout(slots, threads)
