"""FastAPI around a pipeline of transformers, as one finds it in tutorials: the model as it is, torch's own threads.

`classify`: `POST /classify {"text": TEXT or [TEXT, ...]}`. `answer`: `POST /qa {"question", "context"}`; its pipeline
is in transformers 4 only. `zero-shot`: `POST /classify {"text", "labels": [LABEL, ...]}`.
"""

import json
from pathlib import Path
from typing import Any

import fastapi
import pydantic
import transformers
import uvicorn

from benchmarks.serve.baselines.arguments import read_arguments

LIST_BATCH = 8
"""Texts of one request that the pipeline runs together."""


class TextBody(pydantic.BaseModel):
    """A request to classify."""

    text: str | list[str]


class Question(pydantic.BaseModel):
    """A request to answer."""

    question: str
    context: str


class Labelled(pydantic.BaseModel):
    """A text, and labels to choose from."""

    text: str
    labels: list[str]


def classifier(folder: Path) -> fastapi.FastAPI:
    """Return the application around a text classifier."""
    app = fastapi.FastAPI()
    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu")

    @app.post("/classify")
    def classify(texts: TextBody) -> list[dict[str, Any]]:
        many = isinstance(texts.text, list)
        found = pipe(texts.text, truncation=True, **({"batch_size": LIST_BATCH} if many else {}))
        return list(found)

    return app


def reader(folder: Path) -> fastapi.FastAPI:
    """Return the application around a reader of documents, with the limits that the model was trained with."""
    app = fastapi.FastAPI()
    pipe = transformers.pipeline("question-answering", model=str(folder), device="cpu")
    limits = json.loads((folder / "reading.json").read_text(encoding="utf-8"))

    @app.post("/qa")
    def qa(asked: Question) -> dict[str, Any]:
        return dict(pipe(question=asked.question, context=asked.context, **limits))

    return app


def chooser(folder: Path) -> fastapi.FastAPI:
    """Return the application around a model of natural language inference that judges the request's labels."""
    app = fastapi.FastAPI()
    pipe = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")

    @app.post("/classify")
    def choose(asked: Labelled) -> dict[str, Any]:
        return dict(pipe(asked.text, asked.labels))

    return app


def main() -> None:
    """Serve."""
    modes = {"classify": classifier, "answer": reader, "zero-shot": chooser}
    args = read_arguments(*modes)
    app = modes[args.mode](args.folder)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
