"""FastAPI around `fast-gliner` (Rust, ONNX Runtime), in as many processes as `--workers` says, a text at a time.

`POST /ner {"text": TEXT, "labels": [LABEL, ...]}`. The folder is one of `gliner`, with FOLDER/onnx/model.onnx, which
`export_gliner` writes.
"""

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


def create_app() -> fastapi.FastAPI:
    """Return the application of one process."""
    app = fastapi.FastAPI()
    model = fast_gliner.FastGLiNER.from_pretrained(str(read_arguments("labels").folder))

    @app.post("/ner")
    def ner(asked: NerBody) -> list[dict[str, Any]]:
        return list(model.predict_entities(asked.text, asked.labels))

    return app


def main() -> None:
    """Serve."""
    args = read_arguments("labels")
    name = "benchmarks.serve.baselines.fast_gliner_server:create_app"
    uvicorn.run(
        name, factory=True, workers=args.workers, host="127.0.0.1", port=args.port, log_level="warning"
    )


if __name__ == "__main__":
    main()
