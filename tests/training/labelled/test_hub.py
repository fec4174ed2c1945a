import json
from pathlib import Path
from typing import Any

import pytest

from bert.errors import DataError
from training.data_file import DataFile
from training.labelled.sources import read_examples
from training.settings import FinetuneSettings

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test asks the hub, or leaves a data set in its cache."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def folder_of(tmp_path: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """A local data set as users have it: a folder with one file a split."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def saved(tmp_path: Path, rows: dict[str, list[Any]], features: Any) -> Path:
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def read(path: Path, task: str = "classification", **fields: Any) -> list[Any]:
    """Read a data set as `format: hub` does."""
    file = DataFile(path=path, format="hub", **fields)
    return read_examples(file, FinetuneSettings(task=task, output_dir=Path("x")))


REVIEWS = [{"review": "Nice", "mood": "good"}, {"review": "Awful", "mood": "bad"}]
MOOD = {"text": "review", "label": "mood"}


def test_texts_of_a_local_folder(tmp_path: Path) -> None:
    examples = read(folder_of(tmp_path, "reviews", REVIEWS), columns=MOOD)
    assert [(e.text, e.label, e.id) for e in examples] == [("Nice", "good", "1"), ("Awful", "bad", "2")]


def test_part_split_and_revision_are_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*names: Any, **how: Any) -> Any:
        asked.append((names, how))
        return datasets.Dataset.from_list(REVIEWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    part = {"hub_config": "sst2", "hub_split": "validation", "hub_revision": "bcdcba7"}
    read(Path("glue"), columns=MOOD, **part)
    (once,) = asked
    assert once == (("glue", "sst2"), {"split": "validation", "revision": "bcdcba7", "streaming": False})


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    data = folder_of(tmp_path, "reviews", REVIEWS)
    with pytest.raises(DataError, match="is a folder here, which has no revision 'bcdcba7'"):
        read(data, columns=MOOD, hub_revision="bcdcba7")


def test_class_numbers_get_the_names_of_the_data_set(tmp_path: Path) -> None:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    data = saved(tmp_path, {"text": ["Nice", "Awful"], "label": [1, 0]}, features)
    assert [e.label for e in read(data)] == ["good", "bad"]


def test_words_and_tags_as_conll2003_has_them(tmp_path: Path) -> None:
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-MISC"]))
    features = {"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags}
    rows: dict[str, list[Any]] = {"tokens": [["Ada", "L.", "codes"], ["EU"]], "ner_tags": [[1, 2, 0], [3]]}
    first, second = read(saved(tmp_path, rows, features), "ner", label_map={"MISC": None})
    assert first.labels == ("B-PER", "I-PER", "O")
    assert second.labels == ("O",)


def test_questions_as_squad_has_them(tmp_path: Path) -> None:
    answers = {"text": ["1815", "1815"], "answer_start": [11, 11]}
    row = {"id": "1", "title": "Ada", "context": "Ada, born: 1815", "question": "When?", "answers": answers}
    none = {**row, "id": "2", "answers": {"text": [], "answer_start": []}}
    first, second = read(folder_of(tmp_path, "squad", [row, none]), "qa")
    assert first.answers == (("1815", 11), ("1815", 11))
    assert second.answers == ()
    assert first.title == "Ada"


def test_choices_in_columns_as_swag_has_them_or_in_a_list(tmp_path: Path) -> None:
    swag = {"sent1": "He stops.", "sent2": "She", "ending0": "walks.", "ending1": "runs.", "label": 1}
    data = folder_of(tmp_path, "swag", [swag])
    columns = {"choices": "ending0, ending1", "start": "sent2"}
    (example,) = read(data, "multiple_choice", columns=columns)
    assert (example.prompt, example.choices, example.label) == ("He stops.", ("She walks.", "She runs."), 1)
    data = folder_of(tmp_path, "listed", [{"q": "2 + 2 =", "options": ["3", "4"], "right": 1}])
    columns = {"prompt": "q", "choices": "options", "label": "right"}
    (example,) = read(data, "multiple_choice", columns=columns)
    assert example.choices == ("3", "4")


def test_bad_rows_and_missing_columns_are_refused(tmp_path: Path) -> None:
    data = folder_of(tmp_path, "reviews", [*REVIEWS, {"review": "", "mood": "bad"}])
    with pytest.raises(DataError, match=r"reviews/train:3: 'review' is empty"):
        read(data, columns=MOOD)
    with pytest.raises(DataError, match="has no column 'text'; its columns are 'review', 'mood'"):
        read(data, columns={"label": "mood"})
    words = folder_of(tmp_path, "words", [{"tokens": ["Ada", "codes"], "ner_tags": ["B-PER"]}])
    with pytest.raises(DataError, match="has 2 words and 1 tags"):
        read(words, "ner")


def test_a_data_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        read(tmp_path / "none")
    broken = folder_of(tmp_path, "broken", [{"review": "half \ud800", "mood": "good"}, *REVIEWS])
    with pytest.raises(DataError, match=r"cannot be loaded: .*surrogate pair"):
        read(broken, columns=MOOD)
    data = folder_of(tmp_path, "reviews", REVIEWS)
    with pytest.raises(DataError, match="cannot be loaded"):
        read(data, hub_split="dev")


def test_tags_that_are_numbers_without_names(tmp_path: Path) -> None:
    data = folder_of(tmp_path, "words", [{"tokens": ["Ada", "codes"], "ner_tags": [1, 0]}])
    with pytest.raises(DataError, match="'ner_tags' holds numbers: say what they stand for, label_names"):
        read(data, "ner")
    assert read(data, "ner", label_names=["O", "B-PER"])[0].labels == ("B-PER", "O")


@pytest.mark.parametrize(
    "name", ["a.csv", "data/a.csv", "../a", "one/two/three", "/nowhere", "a.parquet", "a.gz"]
)
def test_what_is_a_path_never_goes_to_the_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(DataError, match="is not there, and is no name of a data set"):
        read(Path(name))
    Path("a.csv").write_text("text,label\nNice,good\n", encoding="utf-8")
    with pytest.raises(DataError, match="is a file here; `format: hub` reads folders"):
        read(Path("a.csv"))
