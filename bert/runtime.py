"""ONNX Runtime sessions: export verifies a graph in the session that the service will serve it from.

The one module of `bert` that needs onnxruntime; only code that runs graphs imports it.
"""

import functools
from pathlib import Path
from typing import Any

import onnxruntime

from bert.errors import BundleError
from bert.manifest import CUDA, PROVIDER_OF_LAYOUT, Manifest
from bert.tasks.registry import TASKS

OPTIMIZATION_LEVEL = "ORT_ENABLE_BASIC"
"""Rewrites that all providers share. Higher levels would restore fused operators that were measured slower on CPU."""


def session_recipe(layout: str) -> dict[str, Any]:
    """Return the manifest's `session`: how a graph of this layout is opened."""
    return {"graph_optimization_level": OPTIMIZATION_LEVEL, "providers": [PROVIDER_OF_LAYOUT[layout]]}


def session_options(
    threads: int, layout: str, level: str = OPTIMIZATION_LEVEL, *, spinning: bool = False
) -> onnxruntime.SessionOptions:
    """Return the options of every session; 0 `threads`: one per core.

    Threads do not spin unless that is asked for, and never after a run: they would take the cores from the other sessions
    and from the event loop. Shapes vary with every batch, so there is no memory pattern, and the CPU's arena grows by what
    is asked for. On a GPU no operator may fall back to the CPU: opening the session fails instead.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # what fails is raised, and logged by who asked
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Weights stay until the end, and those that are packed anew are freed: in the arena they would leave holes.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if layout == "flat":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def open_session(
    model: Path | bytes, provider: str, options: onnxruntime.SessionOptions, **provider_options: str
) -> onnxruntime.InferenceSession:
    """Open a graph on one provider. Raises what onnxruntime raises, or RuntimeError if it took another provider."""
    if provider == CUDA:
        onnxruntime.preload_dlls()  # CUDA's libraries are in packages where the system does not look
    source = str(model) if isinstance(model, Path) else model
    session = onnxruntime.InferenceSession(source, options, providers=[(provider, provider_options)])
    running = session.get_providers()
    if running[0] != provider:
        raise RuntimeError(f"it is to run on {provider}, and onnxruntime opened {running}")
    return session


@functools.cache
def share_memory_arena() -> None:
    """Give all sessions of this process one CPU arena, which grows by what is asked for."""
    info = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1}))


def check_output(manifest: Manifest, name: str, width: object) -> None:
    """Raise BundleError unless a graph's output has the name and the width that task and labels ask for.

    `width` is the last dimension of its shape; anything but a number is that of a graph of any width.
    """
    spec = manifest.task
    wanted, numbers = TASKS[spec.task].output(spec, manifest.hidden_size, manifest.vocab_size)
    if name != wanted or (isinstance(width, int) and width != numbers):
        labels = f" with {len(spec.labels)} labels" if spec.labels else ""
        raise BundleError(
            f"the graph gives {name} of width {width}; a {spec.task} model{labels} gives {wanted} of "
            f"width {numbers}: manifest and graph do not belong together"
        )
