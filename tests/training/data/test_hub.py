import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert.data.rows import TextColumns
from bert.errors import DataError
from training.data.datasets import read_examples
from training.data.hub import (
    HubData,
    hub_columns,
    read_hub_choices,
    read_hub_questions,
    read_hub_texts,
    read_hub_words,
)
from training.data_file import DataFile
from training.settings import FinetuneSettings

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test asks the hub, or leaves a data set in its cache."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def folder_of(tmp_path: Path, name: str, rows: list[dict[str, Any]]) -> HubData:
    """A local data set as users have it: a folder with one file a split."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HubData(str(folder))


def saved(tmp_path: Path, rows: dict[str, list[Any]], features: Any) -> HubData:
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(tmp_path / "saved"))
    return HubData(str(tmp_path / "saved"))


REVIEWS = [{"review": "Nice", "mood": "good"}, {"review": "Awful", "mood": "bad"}]


def test_texts_of_a_local_folder(tmp_path: Path) -> None:
    examples = read_hub_texts(folder_of(tmp_path, "reviews", REVIEWS), TextColumns("review", label="mood"))
    assert [(e.text, e.label, e.id) for e in examples] == [("Nice", "good", "1"), ("Awful", "bad", "2")]


def test_part_split_and_revision_are_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*names: Any, **how: Any) -> Any:
        asked.append((names, how))
        return datasets.Dataset.from_list(REVIEWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    file = DataFile(path=Path("glue"), hub_config="sst2", hub_split="validation", hub_revision="bcdcba7")
    settings = FinetuneSettings(task="classification", output_dir=Path("x"))
    read_examples(file.model_copy(update={"columns": {"text": "review", "label": "mood"}}), settings)
    assert asked[-1] == (("glue", "sst2"), {"split": "validation", "revision": "bcdcba7", "streaming": False})


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    data = replace(folder_of(tmp_path, "reviews", REVIEWS), revision="bcdcba7")
    with pytest.raises(DataError, match="is a folder here, which has no revision 'bcdcba7'"):
        read_hub_texts(data, TextColumns("review", label="mood"))


def test_class_numbers_get_the_names_of_the_data_set(tmp_path: Path) -> None:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    data = saved(tmp_path, {"text": ["Nice", "Awful"], "label": [1, 0]}, features)
    assert [e.label for e in read_hub_texts(data, TextColumns())] == ["good", "bad"]


def test_words_and_tags_as_conll2003_has_them(tmp_path: Path) -> None:
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-MISC"]))
    features = {"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags}
    rows: dict[str, list[Any]] = {"tokens": [["Ada", "L.", "codes"], ["EU"]], "ner_tags": [[1, 2, 0], [3]]}
    first, second = read_hub_words(saved(tmp_path, rows, features), label_map={"MISC": None})
    assert first.labels == ("B-PER", "I-PER", "O")
    assert second.labels == ("O",)


def test_questions_as_squad_has_them(tmp_path: Path) -> None:
    answers = {"text": ["1815", "1815"], "answer_start": [11, 11]}
    row = {"id": "1", "title": "Ada", "context": "Ada, born: 1815", "question": "When?", "answers": answers}
    none = {**row, "id": "2", "answers": {"text": [], "answer_start": []}}
    first, second = read_hub_questions(folder_of(tmp_path, "squad", [row, none]))
    assert first.answers == (("1815", 11), ("1815", 11))
    assert second.answers == ()
    assert first.title == "Ada"


def test_choices_in_columns_as_swag_has_them_or_in_a_list(tmp_path: Path) -> None:
    swag = {"sent1": "He stops.", "sent2": "She", "ending0": "walks.", "ending1": "runs.", "label": 1}
    data = folder_of(tmp_path, "swag", [swag])
    (example,) = read_hub_choices(data, choices=("ending0", "ending1"), start="sent2")
    assert (example.prompt, example.choices, example.label) == ("He stops.", ("She walks.", "She runs."), 1)
    data = folder_of(tmp_path, "listed", [{"q": "2 + 2 =", "options": ["3", "4"], "right": 1}])
    (example,) = read_hub_choices(data, prompt="q", choices=("options",), label="right")
    assert example.choices == ("3", "4")


def test_bad_rows_and_missing_columns_are_refused(tmp_path: Path) -> None:
    data = folder_of(tmp_path, "reviews", [*REVIEWS, {"review": "", "mood": "bad"}])
    with pytest.raises(DataError, match=r"reviews/train:3: 'review' is empty"):
        read_hub_texts(data, TextColumns("review", label="mood"))
    with pytest.raises(DataError, match="has no column 'text'; its columns are 'review', 'mood'"):
        read_hub_texts(data, TextColumns("text", label="mood"))
    words = folder_of(tmp_path, "words", [{"tokens": ["Ada", "codes"], "ner_tags": ["B-PER"]}])
    with pytest.raises(DataError, match="has 2 words and 1 tags"):
        read_hub_words(words)


def test_a_data_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        read_hub_texts(HubData(str(tmp_path / "none")), TextColumns())
    broken = folder_of(tmp_path, "broken", [{"review": "half \ud800", "mood": "good"}, *REVIEWS])
    with pytest.raises(DataError, match=r"cannot be loaded: .*surrogate pair"):
        read_hub_texts(broken, TextColumns("review", label="mood"))
    data = folder_of(tmp_path, "reviews", REVIEWS)
    with pytest.raises(DataError, match="cannot be loaded"):
        read_hub_texts(HubData(data.name, split="dev"), TextColumns())


def test_tags_that_are_numbers_without_names(tmp_path: Path) -> None:
    data = folder_of(tmp_path, "words", [{"tokens": ["Ada", "codes"], "ner_tags": [1, 0]}])
    with pytest.raises(DataError, match="'ner_tags' holds numbers: say what they stand for, label_names"):
        read_hub_words(data)
    assert read_hub_words(data, label_names=["O", "B-PER"])[0].labels == ("B-PER", "O")


@pytest.mark.parametrize(
    "name", ["a.csv", "data/a.csv", "./a", "one/two/three", "/nowhere", "a.parquet", "a.gz"]
)
def test_what_is_a_path_never_goes_to_the_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(DataError, match="is not there, and is no name of a data set"):
        hub_columns(HubData(name))
    Path("a.csv").write_text("text,label\nNice,good\n", encoding="utf-8")
    with pytest.raises(DataError, match="is a file here; `format: hub` reads folders"):
        hub_columns(HubData("a.csv"))
