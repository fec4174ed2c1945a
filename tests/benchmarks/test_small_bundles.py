"""The loops around the engine, and the benchmarks of the service alone, on bundles of random weights."""

from pathlib import Path

import pytest

from benchmarks.serve import ab_test, hot_path
from benchmarks.serve.engine_loop import (
    WINDOWS,
    document_batches,
    document_loops,
    measure,
    text_batches,
    text_loops,
)
from bert.tokenizer import Tokenizer
from tests.support.tiny import SPECS, write_tiny_bundle

TEXTS = ["the film", "a", "paris is warm and not dull", "who met angela merkel"] * 33


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "mood"
    write_tiny_bundle(folder, "mood", SPECS["mood"], 0)
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "reader"
    write_tiny_bundle(folder, "reader", SPECS["reader"], 1)
    return folder


@pytest.mark.parametrize("size", [1, 8])
def test_every_text_is_in_one_batch(mood: Path, size: int) -> None:
    tokenizer = Tokenizer.load(mood)
    batches = list(text_batches(tokenizer, SPECS["mood"], TEXTS, size))
    assert sum(items for _, items in batches) == sum(len(batch) for batch, _ in batches) == len(TEXTS)
    assert max(len(batch) for batch, _ in batches) == size


def test_the_batches_of_a_document_make_it_whole(reader: Path) -> None:
    documents = [("who met angela", "angela merkel met in munich " * 40), ("where", "paris")]
    batches = list(document_batches(Tokenizer.load(reader), SPECS["reader"], documents))
    assert sum(items for _, items in batches) == pytest.approx(2)
    assert max(len(batch) for batch, _ in batches) == WINDOWS


def test_the_engine_is_looped_with_one_and_with_all_cores(mood: Path, reader: Path) -> None:
    assert list(measure(mood, TEXTS, 2, 0.02)) == [
        "one by one, 2 threads",
        "sorted in eights, 2 threads",
        "one by one, 2 loops of 1 thread",
        "sorted in eights, 2 loops of 1 thread",
    ]
    loops = text_loops(mood, TEXTS, 1, 0.02) + document_loops(reader, [("who", "a film " * 60)] * 2, 2, 0.02)
    assert all(loop.items_per_s > 0 and loop.batch_ms == sorted(loop.batch_ms) for loop in loops)


@pytest.mark.slow
def test_a_request_is_measured_without_its_engine(
    mood: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_bundle(tmp_path / "names", "names", SPECS["names"], 2)
    brief = ["--seconds", "0.2", "--rounds", "1", "--connections", "2", "--log", str(tmp_path / "log")]
    checkouts = ["--against", str(Path(__file__).parents[2]), "--other", f"{hot_path.SETTINGS} --access-log"]
    assert hot_path.main([str(mood), str(tmp_path), *brief, *checkouts]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in rows[1:]] == [["| sentence", "2"], ["| list", "2"], ["| ner", "2"]]
    assert all(len(row) == 7 for row in rows)


@pytest.mark.slow
def test_two_versions_of_the_service_are_asked_in_turns(
    mood: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brief = ["--bursts", "4", "--seconds", "0.1", "--connections", "1,2", "--log", str(tmp_path / "log")]
    here = ["--against", str(Path(__file__).parents[2]), "--settings", "--frontends 0"]
    assert ab_test.main([str(mood), *here, *brief]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == ["| 1", "| 2"]
    assert all(float(row[1]) > 0 and float(row[2]) > 0 for row in rows[1:])
