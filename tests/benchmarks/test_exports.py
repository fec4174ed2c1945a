"""The benchmark of exports: one tiny model all the way, and what it makes of a failure."""

import json
from pathlib import Path

import pytest

from benchmarks.hub.exports import COLUMNS, Measured, main, parse
from benchmarks.hub.random_models import NAMES, unigram
from benchmarks.serve.baselines.encoder_shapes import SHAPES, SPECIAL_PIECES


@pytest.mark.slow
def test_a_tiny_model_is_served_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--out", str(tmp_path), "--patience", "300"]) == 0
    (found,) = json.loads((tmp_path / "exports.json").read_text("utf-8"))
    assert found["precision"] in ("int8", "fp32") and not found["failure"]
    assert 0 < found["first_answer_s"] <= found["final_s"]
    assert found["second_start_s"] > 0 and found["export_cpu_s"] > 0
    assert {name for name, _ in found["steps"]} >= {"read", "build fp32", "build int8", "write"}
    assert min(found["serve_peak_bytes"], found["export_peak_bytes"]) > 50e6
    shown = capsys.readouterr().out
    assert (tmp_path / "exports.md").read_text("utf-8") == shown
    assert shown.splitlines()[-1].startswith("| tiny | ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exports.json", "exports.md"]


def test_a_failure_stands_in_its_row() -> None:
    cells = Measured("a", 4_000_000, failure="bert-export ended with 1: no").row().split(" | ")
    assert len(cells) == len(COLUMNS) and cells[2] == "bert-export ended with 1: no"


def test_made_up_pieces_are_as_many_as_asked_for_and_read_words() -> None:
    backend = unigram(20_000)
    assert backend.get_vocab_size() == 20_000
    assert backend.encode("It was a warm film.").tokens[1:4] == ["▁It", "▁was", "▁a"]
    assert [backend.token_to_id(piece) for piece in SPECIAL_PIECES] == [0, 1, 2, 3, 4]


def test_unknown_models_are_refused() -> None:
    assert {name.removeprefix("gliner-") for name in NAMES} <= set(SHAPES) and "tiny" not in parse([]).models
    with pytest.raises(SystemExit):
        parse(["gpt"])
