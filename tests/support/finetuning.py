"""Sample data and settings of short fine-tuning runs, and files written for a test."""

from pathlib import Path
from typing import Any

from training.settings import FinetuneSettings

SAMPLES = Path(__file__).parents[2] / "examples" / "data"


FILES: dict[str, dict[str, Any]] = {
    "classification": {"path": "sentiment-{}.csv"},
    "ner": {"path": "ner-{}.conll"},
    "qa": {"path": "qa-{}.json"},
    "multiple_choice": {"path": "choice-{}.jsonl"},
    "similarity": {"path": "similarity-{}.tsv", "format": "glue", "glue_task": "STS-B"},
}


def files(task: str, part: str) -> list[dict[str, Any]]:
    """Return the sample data of a task, "train" or "dev"."""
    file = FILES[task if task != "open_ner" else "ner"]
    return [{**file, "path": SAMPLES / file["path"].format(part)}]


def short_run(task: str, base: Path, output_dir: Path, **changes: Any) -> FinetuneSettings:
    """Return settings for a short run on the sample data."""
    values: dict[str, Any] = {
        "task": task,
        "base": str(base),
        "output_dir": output_dir,
        "train": files(task, "train"),
        "dev": files(task, "dev"),
        "epochs": 1,
        "batch_size": 8,
        "max_tokens": 48,
        "max_question_tokens": 20,
        "learning_rate": 1e-3,
    }
    return FinetuneSettings(**{**values, **changes})
