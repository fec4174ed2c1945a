"""The sections of the check, the most valuable first, and the time that each may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the check, run in a process of its own."""

    name: str
    """Module of `sections` that has `run(check)`."""
    title: str
    most_s: float
    """Seconds after which it is stopped."""
    least_s: float
    """Seconds that the sections before it must leave."""
    meaning: str
    """Explanation of its numbers, for the report."""


SECTIONS = (
    Section(
        "environment", "Environment", 60, 30,
        "Versions, and what the device does at best: a large square product, and a copy on the device (bytes read and "
        "written). All shares below are of these products.",
    ),
    Section(
        "parity", "Parity", 110, 60,
        "Each row is an export with its own verification: scores of the written graph against the checkpoint in float32 "
        "numpy, each text alone and packed with others. `difference` is the judged one, relative where a text's largest "
        "score is above 1; `neighbours` is what other texts of a batch change in a probability.",
    ),
    Section(
        "engine", "Engine beside PyTorch", 130, 60,
        "Random weights of published shapes, no HTTP, no tokenizing. Tokens are real ones, never padding; PyTorch pads each "
        "batch to its longest text. `of matmul` is the share of the measured rate of a large product. `apart` is the "
        "largest difference of a logit from the first engine's, over its largest.",
    ),
    Section(
        "training", "Training", 150, 60,
        "Steps of the real loops after a warm-up. MFU is the share of the measured rate of products that the model needs; "
        "padding counts for nothing. `varlen` is attention inside each packed text without a mask.",
    ),
    Section(
        "served", "Over HTTP, with lists", 90, 40,
        "A real server with its default settings, asked on this machine. A list is 64 texts in one request to /classify.",
    ),
    Section(
        "captures", "Captured shapes", 45, 20,
        "Small batches with and without captured CUDA graphs, medians. `used` says whether the service would replay the "
        "shape: right, and faster at start.",
    ),
    Section(
        "resume", "Determinism of resume", 80, 40,
        "The same run three times: whole, whole again, and resumed in a new process from the middle of the first. Where "
        "`again` differs from the first, the device's own kernels are not deterministic, and a resumed run cannot be "
        "nearer.",
    ),
)  # fmt: skip


def limit_s(number: int, left_s: float, *, small: bool = False) -> float:
    """Return the seconds of a section, given those left for it and all after it; below 1 there are none.

    In small a section may take whatever the others leave: there the time is that of a busy CPU.
    """
    section = SECTIONS[number]
    reserved = sum(later.least_s for later in SECTIONS[number + 1 :])
    most_s = left_s if small else section.most_s
    return min(most_s, max(left_s - reserved, section.least_s), left_s)
