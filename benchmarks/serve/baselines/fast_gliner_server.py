"""FastAPI around `fast-gliner` (Rust, ONNX Runtime), in as many processes as `--workers` says, each on a core of its own.

`POST /ner {"text": TEXT, "labels": [LABEL, ...]}`. The folder is one of `gliner`, with FOLDER/onnx/model.onnx, which
`export_gliner` writes.
"""

import os
import socket
from multiprocessing import Process
from typing import Any

import fast_gliner
import fastapi
import pydantic
import uvicorn

from benchmarks.serve.baselines.arguments import read_arguments


class NerBody(pydantic.BaseModel):
    """A text and the labels of its entities."""

    text: str
    labels: list[str]


def serve(core: int, port: int, folder: str) -> None:
    """Serve on one core, whatever number of threads the library starts."""
    os.sched_setaffinity(0, {core})
    app, model = fastapi.FastAPI(), fast_gliner.FastGLiNER.from_pretrained(folder)

    @app.post("/ner")
    def ner(asked: NerBody) -> list[dict[str, Any]]:
        return list(model.predict_entities(asked.text, asked.labels))

    # A socket each: of one that is shared the first process takes all connections that come at once.
    listening = socket.create_server(("127.0.0.1", port), backlog=1024, reuse_port=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


def main() -> None:
    """Serve."""
    args = read_arguments("labels")
    cores = sorted(os.sched_getaffinity(0))[: args.workers]
    processes = [Process(target=serve, args=(core, args.port, str(args.folder))) for core in cores]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
