"""mosec, https://mosecorg.github.io/mosec: `documented` as in its README, `tuned` by hand, `unbatched`.

`tuned`: of what has come together, texts of like length are padded together, as nothing in mosec does by itself; it
waits the least that mosec allows. `POST /inference {"text": TEXT}`
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mosec

from benchmarks.serve.baselines.arguments import read_arguments
from benchmarks.serve.baselines.padded import PaddedClassifier

FOLDER, THREADS, SPINNING = "BENCH_FOLDER", "BENCH_THREADS", "BENCH_SPINNING"
TIMEOUT_MS = 60_000
"""Its own limit of 3 seconds would refuse what a slow engine still answers."""


class Padded(mosec.Worker):  # type: ignore[misc]
    """Batches as they come, padded to their longest text."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = PaddedClassifier(
            Path(os.environ[FOLDER]), int(os.environ[THREADS]), spinning=bool(int(os.environ[SPINNING]))
        )

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Answer a batch."""
        return [asdict(label) for label in self.classifier.padded([each["text"] for each in data])]


class Grouped(Padded):
    """Batches sorted and split."""

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Answer a batch."""
        return [asdict(label) for label in self.classifier.grouped([each["text"] for each in data])]


class Single(Padded):
    """One text after the other."""

    def forward(self, data: dict[str, str]) -> dict[str, Any]:  # type: ignore[override]
        """Answer a text."""
        return asdict(self.classifier.padded([data["text"]])[0])


def main() -> None:
    """Serve."""
    args = read_arguments("documented", "tuned", "unbatched")
    os.environ |= {
        "MOSEC_PORT": str(args.port),
        "MOSEC_ADDRESS": "127.0.0.1",
        "MOSEC_TIMEOUT": str(TIMEOUT_MS),
    }
    os.environ |= {FOLDER: str(args.folder), THREADS: str(args.threads)}
    os.environ[SPINNING] = str(int(args.mode == "documented"))  # the default of onnxruntime
    server = mosec.Server()
    if args.mode == "documented":
        server.append_worker(Padded, num=args.workers, max_batch_size=8, max_wait_time=10)
    elif args.mode == "tuned":
        server.append_worker(Grouped, num=args.workers, max_batch_size=32, max_wait_time=1)
    else:
        server.append_worker(Single, num=args.workers)
    server.run()


if __name__ == "__main__":
    main()
