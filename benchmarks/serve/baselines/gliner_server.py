"""FastAPI around `gliner`, as its documentation calls it: torch's own threads, a text at a time.

`POST /ner {"text": TEXT, "labels": [LABEL, ...]}`.
"""

from typing import Any

import fastapi
import gliner
import pydantic
import uvicorn

from benchmarks.serve.baselines.arguments import read_arguments


class NerBody(pydantic.BaseModel):
    """A text and the labels of its entities."""

    text: str
    labels: list[str]


def main() -> None:
    """Serve."""
    args = read_arguments("labels")
    app = fastapi.FastAPI()
    model = gliner.GLiNER.from_pretrained(str(args.folder), local_files_only=True)

    @app.post("/ner")
    def ner(asked: NerBody) -> list[dict[str, Any]]:
        return list(model.predict_entities(asked.text, asked.labels))

    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
