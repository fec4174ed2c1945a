"""infinity, https://michaelfeil.github.io/infinity, started as its documentation says: engine `torch` or `optimum`.

`POST /classify {"model": "model", "input": [TEXT, ...]}`
"""

import os
import sys

from benchmarks.serve.baselines.arguments import read_arguments

MODEL = "model"


def main() -> None:
    """Serve."""
    args = read_arguments("torch", "optimum")
    # The graph that it optimises is kept beside the model: its own cache would give it to a model of other weights.
    os.environ["HF_HUB_CACHE"] = str(args.folder / "cache")
    # Told a longer path, it asks optimum for a file of that whole name in the folder, and finds none.
    os.chdir(args.folder)
    from infinity_emb.cli import cli

    sys.argv = [
        *("infinity_emb", "v2", "--model-id", ".", "--served-model-name", MODEL),
        *("--engine", args.mode, "--device", "cpu"),
        *("--host", "127.0.0.1", "--port", str(args.port), "--log-level", "warning"),
    ]
    if args.mode == "optimum":
        sys.argv.append("--no-model-warmup")  # its warm-up text is 514 tokens, and this engine does not cut
    cli()


if __name__ == "__main__":
    main()
