"""LitServe, https://lightning.ai/docs/litserve: `documented` as its page on batching says, `tuned` by hand.

`tuned`: texts of like length are padded together and no time is waited. `POST /predict {"text": TEXT}`
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import litserve

from benchmarks.serve.baselines.arguments import read_arguments
from benchmarks.serve.baselines.padded import Label, PaddedClassifier


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """Batches as they come, padded to their longest text, or sorted and split."""

    def __init__(self, folder: Path, threads: int, *, tuned: bool) -> None:
        super().__init__(max_batch_size=32 if tuned else 8, batch_timeout=0.0 if tuned else 0.01)
        self.folder, self.threads, self.tuned = folder, threads, tuned

    def setup(self, device: str) -> None:
        """Load the model in the worker."""
        self.classifier = PaddedClassifier(self.folder, self.threads, spinning=not self.tuned)

    def decode_request(self, request: dict[str, str]) -> str:
        """Return the request's text."""
        return request["text"]

    def predict(self, x: list[str]) -> list[Label]:
        """Answer a batch."""
        return self.classifier.grouped(x) if self.tuned else self.classifier.padded(x)

    def encode_response(self, output: Label) -> dict[str, Any]:
        """Return an answer's JSON."""
        return asdict(output)


def main() -> None:
    """Serve."""
    args = read_arguments("documented", "tuned")
    api = Classifier(args.folder, args.threads, tuned=args.mode == "tuned")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=args.workers, timeout=60)
    server.run(host="127.0.0.1", port=args.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
