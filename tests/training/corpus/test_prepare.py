"""The whole run: the same files from any number of processes, and after kill -9."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import ConfigError, DataError
from bert.tokenizer import Tokenizer
from tests.support.raw_text import content, texts, write_jsonl, write_vocabulary
from tests.support.shards import assert_hashes
from training.corpus.prepare import locked, make_plan, prepare
from training.corpus.sentences import split_sentences
from training.corpus.settings import PrepareSettings, TextSource
from training.corpus.shards import Corpus
from training.corpus.text_files import list_files

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")


def make(folder: Path, source: Path, tokenizer: Path | None, **changes: Any) -> PrepareSettings:
    values: dict[str, Any] = {"processes": 1, "shard_mb": 0.01, "held_out": 0.1, **changes}
    return PrepareSettings(sources=[str(source)], output_dir=folder, tokenizer=tokenizer, **values)


def test_one_and_two_processes_write_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(60))
    one, two = (tmp_path / name for name in ("one", "two"))
    prepare(make(one, source, tokenizer, processes=1))
    prepare(make(two, source, tokenizer, processes=2))
    assert content(one) == content(two)
    assert len(Corpus.open(one).shards("train")) > 3


def test_shards_hold_the_sentences_of_every_document_once(tmp_path: Path, tokenizer: Path) -> None:
    documents = texts(40)
    documents[3], documents[7] = "", " \n\n \u200b"
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    progress = prepare(make(tmp_path / "out", source, tokenizer))
    corpus, pieces = Corpus.open(tmp_path / "out"), Tokenizer.load(tokenizer)
    assert_hashes(corpus)
    found = []
    for shard in [*corpus.shards("train"), *corpus.shards("held_out")]:
        for each in map(shard.document, range(len(shard))):
            found.append([part.tolist() for part in np.split(each.tokens, each.sentences[1:-1])])
    expected = [pieces.ids(split_sentences(text, "en")) for text in documents if text.strip(" \n\u200b")]
    assert sorted(found) == sorted(expected)
    assert found != sorted(found)
    assert progress.found["empty"] == 2
    assert corpus.info["left_out"] == {"empty": 2, "broken": 0}
    assert 0 < corpus.info["splits"]["held_out"]["documents"] < 12
    assert f"{len(expected):,} documents" in progress.summary()


def start(folder: Path, source: Path, tokenizer: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "training.commands.prepare",
        "--sources",
        str(source),
        "--output-dir",
        str(folder),
    ]
    command += ["--tokenizer", str(tokenizer), "--shard-mb", "0.01", "--processes", "2", "--held-out", "0.1"]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(run: subprocess.Popen[str]) -> str:
    _, messages = run.communicate(timeout=300)
    assert run.returncode == 0, messages
    return messages


def notes(folder: Path) -> list[Path]:
    return sorted((folder / ".prepare").glob("[0-9]*.json"))


def times(folder: Path) -> dict[str, int]:
    """Return when the note on each block was written."""
    return {file.name: file.stat().st_mtime_ns for file in notes(folder)}


def workers(group: int) -> list[int]:
    """Processes of a session that still run."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,sid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, session, state in rows if int(session) == group and not state.startswith("Z")]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(400))
    prepare(make(tmp_path / "whole", source, tokenizer))
    killed = tmp_path / "killed"
    run = start(killed, source, tokenizer)
    while len(notes(killed)) < 4:
        assert run.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    run.kill()
    run.communicate(timeout=300)
    deadline = time.monotonic() + 120
    while workers(run.pid):
        assert time.monotonic() < deadline, "workers outlive their main process"
        time.sleep(0.02)
    done = times(killed)
    assert not (killed / "corpus.json").exists()
    total = len(notes(tmp_path / "whole"))
    assert 4 <= len(done) < total
    messages = finish(start(killed, source, tokenizer))
    assert f"{len(done)} blocks are finished already" in messages
    assert content(killed) == content(tmp_path / "whole")
    assert done.items() <= times(killed).items()


def test_only_what_is_missing_is_made_again(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(60))
    out = tmp_path / "out"
    prepare(make(out, source, tokenizer))
    before, written = content(out), times(out)
    (out / "train-00001.tokens").write_bytes(b"cut")
    (out / ".prepare" / "00003.json").unlink()
    (out / "train-00002.tokens.77.partial").write_bytes(b"left by a killed worker")
    prepare(make(out, source, tokenizer))
    assert content(out) == before
    again = times(out)
    assert {name for name, when in again.items() if when != written[name]} == {"00001.json", "00003.json"}
    prepare(make(out, source, tokenizer))
    assert content(out) == before and times(out) == again


def test_another_part_of_a_data_set_is_another_plan(tmp_path: Path) -> None:
    def planned(**changes: str) -> dict[str, Any]:
        source = TextSource(path="a/wiki", format="hub", **changes)
        settings = PrepareSettings(sources=[source], output_dir=tmp_path)
        return make_plan(settings, list_files(settings.sources))

    first = planned(hub_revision="b04c")
    assert first == planned(hub_revision="b04c")
    assert first not in (planned(), planned(hub_revision="77aa"))
    assert planned() not in (planned(hub_config="en"), planned(hub_split="all"))


def test_a_folder_begun_otherwise_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(5))
    prepare(make(tmp_path / "out", source, tokenizer))
    with pytest.raises(ConfigError, match="was begun with seed 42 and is now given 1"):
        prepare(make(tmp_path / "out", source, tokenizer, seed=1))
    write_jsonl(source, texts(6))
    with pytest.raises(ConfigError, match="was begun with sources"):
        prepare(make(tmp_path / "out", source, tokenizer))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(5))
    with locked(tmp_path / "out"), pytest.raises(ConfigError, match="another bert-prepare is at work in"):
        prepare(make(tmp_path / "out", source, tokenizer))
    prepare(make(tmp_path / "out", source, tokenizer))


def test_a_broken_line_stops_or_is_counted(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(20))
    lines = source.read_text().splitlines(keepends=True)
    lines[6] = '{"text": 5}\n'
    source.write_text("".join(lines))
    with pytest.raises(DataError, match=r"a.jsonl:7: 'text' is '5', which is not text"):
        prepare(make(tmp_path / "stop", source, tokenizer))
    progress = prepare(make(tmp_path / "skip", source, tokenizer, on_error="skip"))
    assert (progress.found["broken"], progress.found["documents"]) == (1, 19)
    assert Corpus.open(tmp_path / "skip").info["left_out"]["broken"] == 1
    assert "1 that cannot be read" in progress.summary()
    # What was stopped goes on with the rule that lets it.
    assert prepare(make(tmp_path / "stop", source, tokenizer, on_error="skip")).found["broken"] == 1


def test_without_a_tokenizer_one_is_trained_first(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(30))
    out = tmp_path / "out"
    told = prepare(make(out, source, None, vocab_size=256, vocab_only=True)).summary()
    assert told.startswith("vocabulary trained in ")
    trained = (out / "tokenizer.json").read_bytes()
    assert not (out / "corpus.json").exists()
    prepare(make(out, source, None, vocab_size=256))
    assert (out / "tokenizer.json").read_bytes() == trained
    corpus = Corpus.open(out)
    assert Tokenizer.load(corpus.folder).vocab_size == corpus.vocab_size <= 256
    assert corpus.info["tokenizer"]["uncased"] is True


@pytest.mark.parametrize("family", ["roberta", "modernbert", "albert", "deberta-v2"])
def test_other_vocabularies_read_a_document_as_its_whole_text(tmp_path: Path, family: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents := texts(30))
    prepare(make(tmp_path / "out", source, None, model_type=family, vocab_size=300, held_out=0.0))
    corpus = Corpus.open(tmp_path / "out")
    tokenizer = Tokenizer.load(corpus.folder)
    assert corpus.vocab_size == tokenizer.vocab_size <= 300
    assert corpus.info["tokenizer"]["uncased"] is (family == "albert")
    found = [shard.document(i) for shard in corpus.shards("train") for i in range(len(shard))]
    expected = tokenizer.ids([" ".join(document.split()) for document in documents])
    assert [document.tokens.tolist() for document in found] == expected
    one = found[0]
    starts = np.flatnonzero(~one.continues)
    words = [tokenizer.decode(part.tolist()).strip() for part in np.split(one.tokens, starts[1:])]
    text = documents[0].lower() if family == "albert" else documents[0]
    assert words == text.split()


def test_settings_of_vocabularies_that_do_not_fit_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(3))
    with pytest.raises(ValueError, match="uncased means nothing to the byte-level BPE of roberta"):
        make(tmp_path / "out", source, None, model_type="roberta", uncased=True)
    with pytest.raises(ConfigError, match="needs a tokenizer that takes Chinese apart"):
        prepare(
            make(tmp_path / "out", source, None, model_type="roberta", vocab_size=300, word_segmenter="jieba")
        )


@pytest.mark.parametrize(("family", "warns"), [("bert", True), ("modernbert", False)])
def test_a_corpus_of_unknown_words_is_said(tmp_path: Path, family: str, warns: bool) -> None:
    rng = np.random.default_rng(0)
    unspaced = ["".join(rng.choice(list("กขคงจฉชซ"), 150)) for _ in range(20)]
    source = write_jsonl(tmp_path / "a.jsonl", unspaced)
    settings = make(tmp_path / "out", source, None, model_type=family, vocab_size=400, shard_mb=0.001)
    said = "warning: 100% of the tokens are unknown ([UNK])"
    assert (said in prepare(settings).summary()) == warns
    assert (said in prepare(settings).summary()) == warns  # by the notes of the run before


def test_chinese_words_are_in_the_shards(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["我们去公园。", "公园很好。"])
    prepare(make(tmp_path / "out", source, None, vocab_size=256, language="zh", held_out=0.0))
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.info["word_segmenter"] == "jieba"
    (shard,) = corpus.shards("train")
    assert shard.document(0).continues.astype(int).tolist() == [0, 1, 0, 0, 1, 0]


def test_help_describes_every_field() -> None:
    command = [sys.executable, "-m", "training.commands.prepare", "--help"]
    shown = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    )
    for name, field in PrepareSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown.stdout
        assert field.description and field.description.split()[0] in shown.stdout


@pytest.mark.slow
def test_a_run_stopped_by_the_user_says_how_to_go_on(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(6000))
    run = start(tmp_path / "out", source, tokenizer)
    while not notes(tmp_path / "out"):
        assert run.poll() is None
        time.sleep(0.005)
    os.killpg(run.pid, signal.SIGINT)
    _, messages = run.communicate(timeout=300)
    assert run.returncode == 130
    assert messages.rstrip().endswith("stopped; the same command goes on from here")
    assert "Traceback" not in messages
    shutil.rmtree(tmp_path / "out")
