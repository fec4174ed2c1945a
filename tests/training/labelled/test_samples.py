"""The sample data and the page on formats: what they show is really read."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bert.data.entity_json import read_entity_json
from bert.data.examples import LabelledFile
from bert.data.glue import read_glue
from bert.data.open_entities import read_open_entities
from bert.data.read import read_labelled
from bert.data.rows import TextColumns
from bert.data.squad import read_squad
from bert.data.tables import read_table
from bert.data.tagged_words import bio_labels, read_conll
from bert.tasks.spec import TaskSpec
from training.data_file import DataFile
from training.labelled.choice import read_choice
from training.labelled.sources import Example, class_labels, shared_with_training, validate_training

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "examples" / "data"
PAGE = (ROOT / "docs" / "data-formats.md").read_text(encoding="utf-8")
TOPICS = TextColumns(label="labels", problem_type="multi_label")
Read = Callable[[Path], Sequence[Example]]
READERS: dict[str, Read] = {
    "sentiment": lambda path: read_table(path, TextColumns()),
    "entailment": lambda path: read_glue(path, "RTE"),
    "topics": lambda path: read_table(path, TOPICS),
    "similarity": lambda path: read_glue(path, "STS-B"),
    "ner": read_conll,
    "tickets": lambda path: read_entity_json(LabelledFile(path=path)),
    "qa": read_squad,
    "choice": read_choice,
}


@pytest.mark.parametrize("task", READERS)
def test_each_task_has_samples_to_train_on_and_others_to_score(task: str) -> None:
    (train,) = SAMPLES.glob(f"{task}-train.*")
    (dev,) = SAMPLES.glob(f"{task}-dev.*")
    examples, held_out = READERS[task](train), READERS[task](dev)
    validate_training(train, examples)
    assert len(examples) >= 12
    assert len(held_out) >= 4
    assert shared_with_training(examples, held_out) == 0


def test_samples_have_the_labels_that_their_page_promises() -> None:
    assert class_labels(read_table(SAMPLES / "topics-train.jsonl", TOPICS)) == (
        "economy",
        "politics",
        "sport",
    )
    assert class_labels(read_table(SAMPLES / "sentiment-zh.csv", TextColumns())) == ("正面", "负面")
    labels = bio_labels(read_conll(SAMPLES / "ner-train.conll"))
    assert labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    questions = read_squad(SAMPLES / "qa-train.json")
    assert 0 < sum(not example.answers for example in questions) < len(questions) / 2


def test_samples_stay_small_and_are_all_listed() -> None:
    page = (SAMPLES / "README.md").read_text(encoding="utf-8")
    files = [path for path in SAMPLES.iterdir() if path.name != "README.md"]
    assert all(f"`{path.name}`" in page for path in files)
    assert all(path.stat().st_size < 16_000 for path in files)  # the tutorial's 200 messages are 13,007


def test_every_example_of_the_page_on_formats_is_read(tmp_path: Path) -> None:
    blocks = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    readers: dict[str, Read] = {
        "reviews": READERS["sentiment"],
        "entities": read_conll,
        "spans": lambda path: read_entity_json(LabelledFile(path=path)),
        "tokens": lambda path: read_entity_json(LabelledFile(path=path)),
        "gliner": lambda path: read_open_entities(LabelledFile(path=path)),
        "questions": read_squad,
        "choices": read_choice,
        "triplets": lambda path: read_labelled(LabelledFile(path=path), "similarity"),
    }
    assert len(blocks) == 10
    for name, content in blocks:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert readers[path.stem](path)


def test_every_field_of_a_data_file_is_on_the_page() -> None:
    assert [name for name in DataFile.model_fields if f"`{name}`" not in PAGE] == []


def test_the_page_lists_the_fields_of_task_json() -> None:
    section = PAGE.partition("## `task.json`")[2]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert listed == list(TaskSpec("qa").to_dict())
