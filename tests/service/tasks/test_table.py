"""The table of served tasks, and the places that CONTRIBUTING names for a new one."""

import re
from pathlib import Path
from typing import Any

import pytest

from bert.tasks.registry import TASKS as MODEL_TASKS
from bert.tasks.spec import TaskSpec
from service.tasks import table
from service.tasks.task import ServedTask

ROOT = Path(__file__).parents[3]
PACKAGES = ("bert", "training", "model_export", "service", "client/bert_client")
SECTION = re.compile(r"## Add a task\n(.*?)\n## ", re.DOTALL)
IN_WORDS_ONLY = {"service/settings.py"}
"""Files that name every endpoint in a sentence and hold no entry."""


def test_every_task_of_models_is_served_and_has_a_first_request() -> None:
    assert table.BY_ROW.keys() == table.FIRST.keys() == MODEL_TASKS.keys()


def test_every_task_in_the_folder_is_in_the_table() -> None:
    classes = {each for each in ServedTask.__subclasses__() if each.__module__.startswith("service.tasks")}
    assert {type(task) for task in table.TASKS} == classes
    files = {path.stem for path in (ROOT / "service/tasks").glob("*.py")} - {
        "__init__",
        "embedding_types",
        "label_sets",
        "schema",
        "sparse",
        "table",
        "task",
    }
    assert {each.__module__.rpartition(".")[2] for each in classes} == files


@pytest.mark.parametrize("task", table.TASKS, ids=lambda task: task.name)
def test_an_example_is_a_valid_request_with_the_results_of_a_response(task: ServedTask[Any]) -> None:
    request = task.request.model_validate(task.request.example)
    assert set(task.texts) <= type(request).model_fields.keys()
    task.response.model_validate(task.example)


@pytest.mark.parametrize(
    ("spec", "example"),
    [
        (TaskSpec("classification", ("NEGATIVE", "POSITIVE")), "A warm, funny film"),
        (TaskSpec("classification", ("1 star", "2 stars")), "A warm, funny film"),
        (TaskSpec("classification", ("refund", "starter")), "My parcel"),
        (TaskSpec("classification", ("no", "yes"), pair=True), "A man is playing a guitar."),
        (TaskSpec("classification", ("positive", "x"), examples=({"text": "own"},)), "own"),
        (TaskSpec("ner", ("O", "B-PER")), "Angela Merkel"),
    ],
)
def test_the_first_example_fits_the_labels(spec: TaskSpec, example: str) -> None:
    task = table.FIRST[spec.task]
    assert task.example_of(spec)["text"].startswith(example)
    for body in task.examples_of(spec):
        task.request.model_validate(body)


def test_contributing_names_every_place_of_a_task() -> None:
    """Multiple choice needed no more than any other task: its name stands where every task's does."""
    section = SECTION.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert section is not None
    listed = set(re.findall(r"`((?:bert|training|model_export|service|client)/[\w/.]+)`", section[1]))
    assert [path for path in listed if not (ROOT / path).exists()] == []
    files = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".js"))
    holders = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(r"""["']multiple_choice["']|\bMultipleChoice\b""", path.read_text(encoding="utf-8"))
    }
    folders = {path for path in listed if path.endswith("/")}
    missing = {each for each in holders - listed - IN_WORDS_ONLY if not any(map(each.startswith, folders))}
    assert missing == set()
