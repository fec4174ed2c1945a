"""The benchmark of our engine beside others; theirs are measured where their packages are installed."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.baselines import other_engines
from benchmarks.serving.baselines.other_engines import Batch, Run, batches, grouped, logits, measure
from bert.checkpoint.weights import read_checkpoint
from tests.support.checkpoints import SPECS, write_checkpoint
from tests.support.workshop import export

BRIEF = ["--shapes", "1x8", "3x16", "--mixed", "1", "--rounds", "2"]


@pytest.fixture(scope="module")
def mood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "mood"
    write_checkpoint(folder, SPECS["classification"])
    return folder


@pytest.fixture(scope="module")
def bundle(mood: Path) -> Path:
    return export(mood, mood.parent / "bundles" / "mood", "--precision", "fp32")


def rows(printed: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]


def test_ours_alone_is_near_the_checkpoint_and_timed(
    mood: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert other_engines.main([str(mood), str(bundle), "--engines", *BRIEF]) == 0
    head, lone, three, mixed, error = rows(capsys.readouterr().out)
    assert head == ["best (median), ms", "ours, fp32"]
    assert [lone[0], three[0]] == ["1 x 8", "3 x 16"] and mixed[0].startswith("12 of ")
    assert float(error[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openvino", "ctranslate2"])
def test_another_engine_answers_as_the_checkpoint(
    name: str, mood: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name)
    plain = ["--plain", str(tmp_path / "plain")]
    assert other_engines.main([str(mood), str(bundle), "--engines", name, *plain, *BRIEF]) == 0
    head, *_, error = rows(capsys.readouterr().out)
    assert len(head) == len(error) == 4, "ours, and two precisions"
    assert float(error[2]) < 1e-5, "its float32"


@pytest.mark.parametrize("name", ["openvino", "ctranslate2"])
def test_without_its_package_the_message_says_what_to_install(
    name: str, mood: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=f"pip install {name}"):
        other_engines.main([str(mood), str(bundle), "--engines", name, "--plain", str(tmp_path / "plain")])
    assert not (tmp_path / "plain").exists()


def test_an_engine_that_answers_otherwise_is_not_timed(
    mood: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = read_checkpoint(mood)
    engines = {
        f"{share}, {kind}": lambda batch, share=share: lambda: share * logits(checkpoint, batch)
        for share, kind in ((1.01, "int8"), (1.01, "fp32"), (1.3, "int8"))
    }
    with pytest.raises(
        SystemExit, match=r"^too far from the checkpoint: 1.01, fp32 by 0.01, 1.3, int8 by 0.3$"
    ):
        measure(engines, batches(checkpoint, [(2, 8)], 0), checkpoint, 1)
    assert capsys.readouterr().out == ""


def test_only_classifiers_are_compared(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    with pytest.raises(SystemExit, match="is for ner"):
        other_engines.main([str(tmp_path), str(tmp_path), "--engines"])


def test_groups_answer_in_the_order_of_the_texts(mood: Path) -> None:
    (batch,) = batches(read_checkpoint(mood), [], 1).values()
    sizes = []

    def prepare(group: Batch) -> Run:
        sizes.append(len(group))
        return lambda: np.array([[len(text)] for text in group], np.float32)

    found = grouped(prepare)(batch)()
    assert found[:, 0].tolist() == [len(text) for text in batch]
    assert len(sizes) > 1 and sum(sizes) == len(batch)
