"""The list of published checkpoints, and the tables that are made of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("models.json")
HEAD = "| checkpoint | family | task | weights | status | what to know |\n|---|---|---|---|---|---|"
TASK_NAMES = {
    "similarity": "embeddings",
    "qa": "questions",
    "fill_mask": "masks",
    "open_ner": "entities of any label",
    "open_classification": "classes of any label",
}


@dataclass(frozen=True, slots=True)
class Published:
    """One checkpoint of the hub."""

    name: str
    model_type: str
    task: str
    pair: bool
    files: str
    """Kind of its weights: safetensors, pickle where the main branch has no others, or not seen."""
    from_memory: bool
    """None of its files was read for this list."""
    status: str
    """read, not yet, or refused."""
    note: str

    def row(self) -> str:
        """Return its line in docs/models.md."""
        task = TASK_NAMES.get(self.task, self.task) + (", pairs" if self.pair else "")
        mark = " †" if self.from_memory else ""
        cells = (f"`{self.name}`{mark}", f"`{self.model_type}`", task, self.files, self.status, self.note)
        return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def read_list() -> list[Published]:
    """Return the checkpoints in their order in the file."""
    return [Published(**row) for row in json.loads(LIST.read_text(encoding="utf-8"))]


def table(models: Sequence[Published]) -> str:
    """Return the table in docs/models.md."""
    return "\n".join([HEAD, *(model.row() for model in models)])


if __name__ == "__main__":
    print(table(read_list()))
