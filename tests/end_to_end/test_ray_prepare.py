"""The example that prepares a corpus on a real cluster of two nodes, one of which is killed in the middle of a part.

Runs with BERT_RAY_PYTHON, as test_ray_example.py does.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.serve.load.process_tree import kill, tree
from benchmarks.serve.load.ray_nodes import two_nodes, wait_for, with_settings
from benchmarks.serve.load.running import last_lines, process
from tests.support.raw_text import content, texts, write_jsonl, write_vocabulary
from training.corpus.prepare import prepare
from training.corpus.settings import PrepareSettings

PYTHON = os.environ.get("BERT_RAY_PYTHON", "")
PARTS = 5
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="BERT_RAY_PYTHON names no Python: `make clients` sets it"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="addresses of two nodes on one machine, and /proc: Linux"
    ),
]


def part_of(pid: int, out: Path) -> int | None:
    """Return the number of the part that a process tree is at work on, once it has shards."""
    for each in tree(pid):
        try:
            opened = [os.readlink(file) for file in Path(f"/proc/{each}/fd").iterdir()]
        except OSError:
            continue
        for number in range(1, PARTS + 1):
            if str(out / ".prepare" / f"part-{number}-of-{PARTS}.lock") in opened:
                blocks = (int(file.stem) for file in (out / ".prepare").glob("[0-9]*.json"))
                if sum(block % PARTS == number - 1 for block in blocks) > 1:
                    return number
    return None


def finishes(command: list[str], out: Path, logs: Path) -> bool:
    """Run the example on two nodes, killing one that makes a part; return False if it hangs. Its errors fail the test."""
    job_log = logs / "job.log"
    with ExitStack() as cluster:
        address, worker = cluster.enter_context(two_nodes(PYTHON, logs, head_cpus=1, worker_cpus=1))
        running = cluster.enter_context(process(with_settings(*command, RAY_ADDRESS=address), job_log))
        wait_for(lambda: part_of(worker, out) is not None, job_log)
        lost = part_of(worker, out)
        kill(worker)
        record = out / ".prepare" / f"part-{lost}-of-{PARTS}.json"
        assert not record.exists(), "the part was done before its node was killed"
        try:
            assert running.wait(300) == 0, last_lines(job_log)
        except subprocess.TimeoutExpired:
            print(last_lines(job_log))
            return False
    assert "blocks are finished already" in job_log.read_text(), (
        "the part did not go on where its node left it"
    )
    return True


def test_a_lost_node_changes_no_byte(tmp_path: Path) -> None:
    sources = tmp_path / "texts"
    sources.mkdir()
    documents = texts(900)
    for file in range(3):
        write_jsonl(sources / f"{file}.jsonl", documents[300 * file : 300 * (file + 1)])
    tokenizer = write_vocabulary(tmp_path / "vocab.txt")
    one = PrepareSettings(
        sources=[str(sources)], output_dir=tmp_path / "one", tokenizer=tokenizer, shard_mb=0.01, processes=1
    )
    prepare(one)
    # Ray was seen to hang once: docs/howto/ray.md says what a user does then.
    for attempt in ("first", "second"):
        out, logs = tmp_path / f"{attempt}-out", tmp_path / attempt
        logs.mkdir()
        command = [PYTHON, "examples/ray/prepare_with_ray.py", "--parts", str(PARTS)]
        command += ["--sources", str(sources), "--output-dir", str(out)]
        command += ["--tokenizer", str(tokenizer), "--shard-mb", "0.01"]
        if finishes(command, out, logs):
            break
    else:
        pytest.fail("the job hung twice after its node was killed")
    made = {name: each for name, each in content(out).items() if not name.startswith(".prepare/part-")}
    assert made == content(tmp_path / "one")
