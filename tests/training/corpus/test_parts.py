"""Parts that were made anywhere become the corpus of one run, to the byte; what does not belong together is refused."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bert.errors import ConfigError
from bert.settings import SettingsError, read_settings
from tests.support.raw_text import content, texts, write_jsonl, write_vocabulary
from training.corpus.prepare import locked, prepare
from training.corpus.settings import PrepareSettings
from training.corpus.shards import Corpus

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    documents = texts(60)
    for file in range(3):
        write_jsonl(folder / f"{file}.jsonl", documents[20 * file : 20 * (file + 1)])
    return folder


def make(out: Path, sources: Path, tokenizer: Path | None, **changes: Any) -> PrepareSettings:
    values: dict[str, Any] = {"processes": 1, "shard_mb": 0.01, "held_out": 0.1, **changes}
    return PrepareSettings(sources=[str(sources)], output_dir=out, tokenizer=tokenizer, **values)


def make_parts(out: Path, sources: Path, tokenizer: Path | None, of: int, **changes: Any) -> None:
    for number in range(1, of + 1):
        prepare(make(out, sources, tokenizer, part=f"{number}/{of}", **changes))


def corpus_of(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but the locks and records of parts."""
    return {name: each for name, each in content(folder).items() if not name.startswith(".prepare/part-")}


@pytest.mark.parametrize("of", [1, 2, 3, 20])
def test_merged_parts_are_the_corpus_of_one_run(
    tmp_path: Path, sources: Path, tokenizer: Path, of: int
) -> None:
    prepare(make(tmp_path / "one", sources, tokenizer))
    out = tmp_path / "parts"
    make_parts(out, sources, tokenizer, of)
    assert not (out / "corpus.json").exists()
    for _ in range(2):
        prepare(make(out, sources, tokenizer, merge=True))
        assert corpus_of(out) == content(tmp_path / "one")
    assert 3 < len(Corpus.open(out).shards("train")) < 20


def test_parts_of_another_division_do_no_harm(tmp_path: Path, sources: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    prepare(make(out, sources, tokenizer, part="1/2"))
    with pytest.raises(ConfigError, match="part 2/2 is missing"):
        prepare(make(out, sources, tokenizer, merge=True))
    make_parts(out, sources, tokenizer, 3)
    prepare(make(out, sources, tokenizer, merge=True))
    prepare(make(tmp_path / "one", sources, tokenizer))
    assert corpus_of(out) == content(tmp_path / "one")


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_parts_share_a_vocabulary_that_was_trained_before(tmp_path: Path, sources: Path, family: str) -> None:
    trained: dict[str, Any] = {"model_type": family, "vocab_size": 300}
    prepare(make(tmp_path / "one", sources, None, **trained))
    out = tmp_path / "parts"
    with pytest.raises(
        ConfigError, match=r"tokenizer.json is missing, which all parts share: --vocab-only trains"
    ):
        make_parts(out, sources, None, 2, **trained)
    prepare(make(out, sources, None, vocab_only=True, **trained))
    make_parts(out, sources, None, 2, **trained)
    prepare(make(out, sources, None, merge=True, **trained))
    assert corpus_of(out) == content(tmp_path / "one")


def test_a_part_that_is_missing_unfinished_or_cut_is_named(
    tmp_path: Path, sources: Path, tokenizer: Path
) -> None:
    out, merge = tmp_path / "out", make(tmp_path / "out", sources, tokenizer, merge=True)
    with pytest.raises(
        ConfigError, match=r"part 1/1 is missing in .*out, or not finished: --part 1/1 makes it"
    ):
        prepare(merge)
    make_parts(out, sources, tokenizer, 3)
    (out / ".prepare" / "part-2-of-3.json").unlink()
    with pytest.raises(
        ConfigError, match=r"part 2/3 is missing in .*out, or not finished: --part 2/3 makes it"
    ):
        prepare(merge)
    prepare(make(out, sources, tokenizer, part="2/3"))
    shard = out / "train-00002.tokens"
    shard.write_bytes(shard.read_bytes()[:-2])
    (out / ".prepare" / "00000.json").unlink()
    with pytest.raises(ConfigError, match=r"part 1/3 lacks shard 0 in .*out: --part 1/3 makes it"):
        prepare(merge)
    prepare(make(out, sources, tokenizer, part="1/3"))
    with pytest.raises(ConfigError, match=r"part 3/3 lacks shard 2 in .*out: --part 3/3 makes it"):
        prepare(merge)
    assert not (out / "corpus.json").exists()
    prepare(make(out, sources, tokenizer, part="3/3"))
    prepare(merge)
    prepare(make(tmp_path / "one", sources, tokenizer))
    assert corpus_of(out) == content(tmp_path / "one")


def test_a_part_from_other_settings_is_named(tmp_path: Path, sources: Path, tokenizer: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    make_parts(out, sources, tokenizer, 2)
    with pytest.raises(ConfigError, match="out was begun with seed 42 and is now given 1"):
        prepare(make(out, sources, tokenizer, part="2/2", seed=1))
    # On another machine nothing tells it, so it is found when its files come here.
    prepare(make(other, sources, tokenizer, part="2/2", seed=1))
    shutil.copytree(other, out, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"part 2/2 in .*out was made with seed 1 and is now given 42"):
        prepare(make(out, sources, tokenizer, merge=True))


def test_a_part_of_another_text_or_vocabulary_is_named(
    tmp_path: Path, sources: Path, tokenizer: Path
) -> None:
    """Sources of the same names and sizes on another machine: only their content can tell."""
    out, here = tmp_path / "out", tmp_path / "sources"
    shutil.copytree(sources, here)
    prepare(make(out, here, tokenizer, part="1/2"))
    last = here / "2.jsonl"
    whole = last.read_text()
    last.write_text(whole.replace("birds", "foxes"))
    prepare(make(out, here, tokenizer, part="2/2"))
    merge = make(out, here, tokenizer, merge=True)
    with pytest.raises(
        ConfigError, match=r"part 2/2 in .*out was made with text_read \[.* and is now given \["
    ):
        prepare(merge)
    last.write_text(whole)
    file = out / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    for block in (out / ".prepare").glob("0000*.json"):
        block.unlink()
    prepare(make(out, here, tokenizer, part="2/2"))
    with pytest.raises(
        ConfigError, match=r"part 1/2 in .*out was made with tokenizer_json .* and is now given "
    ):
        prepare(merge)


def test_parts_are_made_side_by_side(tmp_path: Path, sources: Path, tokenizer: Path) -> None:
    out = tmp_path / "out"
    with locked(out, "1/2"):
        with pytest.raises(ConfigError, match="another bert-prepare is at work in"):
            prepare(make(out, sources, tokenizer, part="1/2"))
        (out / "train-00000.tokens.77.partial").write_bytes(b"being written")
        prepare(make(out, sources, tokenizer, part="2/2"))
        with pytest.raises(ConfigError, match="part 1/2 is missing in"):
            prepare(make(out, sources, tokenizer, merge=True))
        assert (out / "train-00000.tokens.77.partial").exists()
    prepare(make(out, sources, tokenizer, part="1/2"))
    prepare(make(out, sources, tokenizer, merge=True))
    prepare(make(tmp_path / "one", sources, tokenizer))
    assert corpus_of(out) == content(tmp_path / "one")


@pytest.mark.slow
def test_a_killed_part_goes_on_with_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(400))
    prepare(make(tmp_path / "one", source, tokenizer))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "training.commands.prepare", "--sources", str(source)]
    command += ["--output-dir", str(out), "--tokenizer", str(tokenizer), "--shard-mb", "0.01"]
    command += ["--processes", "1", "--held-out", "0.1"]
    run = subprocess.Popen([*command, "--part", "1/2"], cwd=ROOT, stderr=subprocess.PIPE)
    while len(list((out / ".prepare").glob("[0-9]*.json"))) < 3:
        assert run.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    run.kill()
    run.communicate(timeout=300)
    said = []
    for last in (["--part", "2/2"], ["--part", "1/2"], ["--merge"]):
        done = subprocess.run([*command, *last], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "blocks are finished already" in said[1] and said[1].endswith("part 1/2 is finished\n")
    assert said[2] == f"corpus: {out}\n"
    assert corpus_of(out) == content(tmp_path / "one")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--part", "3/2"], r"part \(3/2\) must be at most 2/2"),
        (["--part", "0/2"], "part"),
        (["--part", "1/2", "--merge"], "part, merge and vocab_only are steps of their own: give one of them"),
    ],
)
def test_a_part_that_cannot_be_is_refused(arguments: list[str], rule: str) -> None:
    with pytest.raises(SettingsError, match=rule):
        read_settings(PrepareSettings, ["--sources", "a.txt", "--output-dir", "out", *arguments])
