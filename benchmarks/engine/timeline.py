"""Time of one batch by part: kernels on a GPU, operators on a CPU, as torch's profiler sees them.

On a GPU it sees the kernels of every library in the process, ONNX Runtime's too. On a CPU it sees PyTorch's only.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bert.encoding import Encoding

ROWS = 15


def report(
    engines: dict[str, Callable[[Sequence[Encoding]], Any]],
    batch: Sequence[Encoding],
    folder: Path,
    *,
    on_gpu: bool,
) -> str:
    """Run the batch once with each engine; write a trace for chrome://tracing, return a table of what took longest."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    lines = list[str]()
    for name, run in engines.items():
        run(batch)
        with profile(activities=kinds) as recorded:
            run(batch)
        file = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
        recorded.export_chrome_trace(str(file))
        lines += [
            f"\n{name}, one batch of {sum(map(len, batch))} tokens ({file}):\n",
            *_longest(recorded, on_gpu),
        ]
    return "\n".join(lines) + "\n"


def _longest(recorded: Any, on_gpu: bool) -> list[str]:
    """Return a table of the kinds that took longest."""

    def own(event: Any) -> float:
        return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)

    events = sorted(recorded.key_averages(), key=own, reverse=True)
    total = sum(map(own, events)) or 1.0
    rows = [
        f"| {event.key[:90]} | {event.count} | {own(event) / 1000:.3f} | {100 * own(event) / total:.0f} |"
        for event in events[:ROWS]
        if own(event) > 0
    ]
    return ["| kernel | times | ms | % |", "|---|---|---|---|", *rows]
