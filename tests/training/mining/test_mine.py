"""Hard negatives: which texts are taken, which never are, and a file that a run reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.data.files import read_lines
from bert.errors import ConfigError, DataError
from bert.settings import read_settings
from training.labelled.sources import read_sources
from training.mining import mine as mining
from training.mining.mine import mine
from training.mining.settings import MineSettings
from training.settings import FinetuneSettings

PAIRS = """anchor,positive
how do I reset my password,click on forgotten password
how do I reset my password,the page of your account resets the password
where is my parcel,a parcel is found by its number
what does shipping cost,shipping of a parcel is free from 30 euros
"""


def mined(folder: Path, pairs: str = PAIRS, **given: Any) -> list[dict[str, Any]]:
    (folder / "pairs.csv").write_text(pairs, encoding="utf-8")
    output = folder / "mined.jsonl"
    mine(MineSettings(pairs=[{"path": folder / "pairs.csv"}], output=output, **given))
    return [json.loads(line) for line in read_lines(output)]


def test_negatives_are_near_and_never_a_positive_of_the_anchor(tmp_path: Path) -> None:
    pool = tmp_path / "pool.txt"
    pool.write_text(
        "passwords need eight signs\n\nhow do I reset my password\nbread is baked\n", encoding="utf-8"
    )
    first, second, parcel, cost = mined(tmp_path, pool=pool, negatives=2)
    assert first["negatives"][0] == second["negatives"][0] == "passwords need eight signs"
    answers = {"click on forgotten password", "the page of your account resets the password"}
    assert not {*first["negatives"], *second["negatives"]} & {*answers, first["anchor"]}
    assert parcel["negatives"][0] == cost["positive"]


def test_what_is_nearer_than_the_margin_allows_is_no_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cosines with the anchor: its positive 0.8, others 0.79, 0.7 and 0.6."""
    cosines = {"anchor": 1.0, "right": 0.8, "near": 0.79, "far": 0.7, "further": 0.6}

    def predictor(*_: Any) -> Any:
        words = ["right", "near", "far", "further", "anchor", "other"]
        vectors = [np.array([c := cosines.get(word, -1.0), (1 - c * c) ** 0.5], np.float32) for word in words]
        return lambda rows: vectors[: len(rows)]

    monkeypatch.setattr(mining, "predictor", predictor)
    pairs = "anchor,positive\nanchor,right\nother,near\nother,far\nother,further\n"
    assert mined(tmp_path, pairs)[0]["negatives"] == ["far", "further"]
    assert mined(tmp_path, pairs, margin=0)[0]["negatives"] == ["near", "far", "further"]
    assert mined(tmp_path, pairs, margin=0.2)[0]["negatives"] == ["further"]
    assert mined(tmp_path, pairs, skip=1)[0]["negatives"] == ["further"]
    assert mined(tmp_path, pairs, negatives=1)[0]["negatives"] == ["far"]


def test_a_run_reads_what_was_mined(tmp_path: Path) -> None:
    rows = mined(tmp_path)
    settings = FinetuneSettings(task="similarity", output_dir=tmp_path)
    files = read_settings(MineSettings, [f"--pairs={tmp_path / 'mined.jsonl'}", "--output=x"]).pairs
    (source,) = read_sources(files, settings)
    assert [list(each.negatives) for each in source.examples] == [row["negatives"] for row in rows]


def test_pairs_with_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without scores: columns `anchor` and `positive`"):
        mined(tmp_path, "text,text_pair,label\na,b,0.5\n")


def test_a_positive_that_is_far_away_has_no_nearer_negatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosines = [-0.5, -0.51, -0.6, 1.0, 0.0]  # with the anchor: right, near, far, anchor, other
    vectors = [np.array([c, (1 - c * c) ** 0.5], np.float32) for c in cosines]
    monkeypatch.setattr(mining, "predictor", lambda *_: lambda rows: vectors)
    pairs = "anchor,positive\nanchor,right\nother,near\nother,far\n"
    whole = mined(tmp_path, pairs)
    assert whole[0]["negatives"] == ["far"]
    monkeypatch.setattr(mining, "AT_ONCE", 1)  # an anchor after the other, as with very many candidates
    assert mined(tmp_path, pairs) == whole


def test_a_pool_is_read_as_other_files_are(tmp_path: Path) -> None:
    pool = tmp_path / "pool.txt"
    pool.write_bytes("\ufeffpasswords need eight\u2028signs\r\nbread is baked\r\n".encode())
    first, *_ = mined(tmp_path, pool=pool, negatives=9)
    assert {"passwords need eight\u2028signs", "bread is baked"} <= set(first["negatives"])
    pool.write_bytes("Schönes Wetter\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"pool.txt:1: is not UTF-8"):
        mined(tmp_path, pool=pool)


def test_an_output_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"the folder of output \(.*\) must be a folder, and .*file is none"
    ):
        mine(MineSettings(pairs=[{"path": tmp_path / "none.csv"}], output=file / "mined.jsonl"))
