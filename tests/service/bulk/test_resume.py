"""bert-predict killed, stopped, resumed, at the end of a pipe, and on a full disk: as a process of its own."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from service.bulk.command import SOME_BAD, main
from service.bulk.output import SeparatedOutput, convert
from tests.support.bulk import COMMAND, read_rows, run, texts, write_rows

ROWS = 5_000
LONG = "the film was dull " * 20


def many(count: int = ROWS) -> list[dict[str, Any]]:
    """Return rows of which some are bad."""
    return [{"id": n, "text": LONG if n % 997 == 3 else text} for n, text in enumerate(texts(count))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("bulk") / "in.jsonl", many())


FORKS = """
import os, random, signal, sys, time
from pathlib import Path
import service.bulk.files as files
import service.bulk.journal as journal
import service.bulk.output as output
import service.bulk.parquet_output as parquet_output
from service.bulk.command import main

files.RECORD_S = 0.0
out = Path(sys.argv[-1])
partial = Path(f"{out}.partial")

def start(place=0):
    # The imports are those of this process: a child begins with the command itself.
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        die_at(place)
        code = main()
    finally:
        os._exit(code)

def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def die_at(place):
    calls = 0
    def dying(function):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == place:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)
        return call
    if place:
        for kind in (output.Output, output.SeparatedOutput, parquet_output.ParquetOutput):
            kind.write = dying(kind.write)
        journal._move = dying(journal._move)
"""
"""Runs of the command, each of which can be killed, in forks of one process."""
KILLED_AT_RANDOM = f"""{FORKS}
moments, kills = random.Random(1), 0
while kills < 6 and not out.exists():
    child = start()
    until = time.monotonic() + 30
    while not (partial / "progress.json").exists() and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(moments.uniform(0.0, 0.3))
    os.kill(child, signal.SIGKILL)
    kills += end_of(child) == -signal.SIGKILL
print(kills)
sys.exit(end_of(start()) if partial.exists() else {SOME_BAD})
"""
KILLED_WHILE_CONVERTING = f"""{FORKS}
output.READ_BYTES = 2**16
kills = 0
for place in range(1, 20, 2):
    code = end_of(start(place))
    if code != -signal.SIGKILL:
        break
    kills += 1
    if place == 1:  # what a power cut leaves behind the recorded bytes
        with (partial / "output").open("ab") as file:
            file.write(b"torn")
print(kills)
sys.exit(code)
"""
"""Kills with the n-th step of the conversion, or of the renames after it."""


def killed(script: str, arguments: list[str], folder: Path, ending: str) -> int:
    """Return how often a script killed runs; in the end the files are those of a run that nobody killed."""
    expected, out = folder / f"whole.{ending}", folder / f"out.{ending}"
    assert main([*arguments, "--out", str(expected), "--quiet"]) == SOME_BAD
    ended = run(*arguments, "--out", out, program=[sys.executable, "-c", script])
    assert ended.returncode == SOME_BAD, ended.stderr
    assert out.read_bytes() == expected.read_bytes()
    assert Path(f"{out}.bad.jsonl").read_bytes() == Path(f"{expected}.bad.jsonl").read_bytes()
    assert not Path(f"{out}.partial").exists()
    return int(ended.stdout)


@pytest.mark.parametrize(
    "ending",
    ["parquet", *(pytest.param(each, marks=pytest.mark.soak) for each in ("jsonl", "csv", "csv.gz"))],
)
def test_a_run_that_is_killed_again_and_again_gives_the_same(
    bundles: Path, source: Path, tmp_path: Path, ending: str
) -> None:
    assert killed(KILLED_AT_RANDOM, [str(bundles / "mood"), str(source)], tmp_path, ending) > 0


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("jsonl", "csv"),
        ("parquet", "parquet"),
        pytest.param("jsonl", "parquet", marks=pytest.mark.soak),
        pytest.param("jsonl", "jsonl.gz", marks=pytest.mark.soak),
    ],
)
def test_a_run_that_is_killed_while_it_converts_gives_the_same(
    bundles: Path, tmp_path: Path, kind: str, target: str
) -> None:
    source = write_rows(tmp_path / f"in.{kind}", many(2100))
    assert killed(KILLED_WHILE_CONVERTING, [str(bundles / "mood"), str(source)], tmp_path, target) > 1


def test_a_torn_last_line_is_dropped(bundles: Path, source: Path, tmp_path: Path) -> None:
    expected, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    arguments = [str(bundles / "mood"), str(source), "--quiet", "--out"]
    assert main([*arguments, str(expected)]) == SOME_BAD
    stopped([*arguments, str(out)], signal.SIGKILL)
    for name in ("rows", "bad"):
        with Path(f"{out}.partial/{name}.jsonl").open("ab") as file:
            file.write(b'{"id":1,"te')
    assert main([*arguments, str(out)]) == SOME_BAD
    assert out.read_bytes() == expected.read_bytes()


STOPS = """
import os, sys
import service.bulk.files as files
from service.bulk.command import main
files.RECORD_S = 0.0
number, record = int(sys.argv.pop(1)), files.Files.record
def recorded(own):
    record(own)
    if own.progress.rows:
        files.Files.record = record
        os.kill(os.getpid(), number)
files.Files.record = recorded
sys.exit(main())
"""


def stopped(arguments: list[str], number: int) -> "tuple[int, str]":
    """Run until something is recorded, and a signal comes then; return exit code and standard error."""
    ended = run(number, *arguments, program=[sys.executable, "-c", STOPS])
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_the_same_command_goes_on_with(
    bundles: Path, source: Path, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out)]
    code, said = stopped(arguments, number)
    assert code == 128 + number, said
    assert "the same command goes on from there" in said
    assert not out.exists()
    again = run(*arguments)
    assert again.returncode == SOME_BAD
    assert b"resumed after " in again.stderr
    assert [row["id"] for row in read_rows(out)] == [n for n in range(ROWS) if n % 997 != 3]


def test_a_signal_ends_the_conversion_too(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", many(3)), tmp_path / "out.csv"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out)]
    write = SeparatedOutput.write

    def signalled(output: SeparatedOutput, lines: Any) -> None:
        write(output, lines)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(SeparatedOutput, "write", signalled)
        for _ in range(2):
            assert main(arguments) == 128 + signal.SIGTERM
            assert "stopped by SIGTERM after 3 rows: the same command goes on" in capsys.readouterr().err
    assert not out.exists()
    assert main(arguments) == 0
    assert len(read_rows(out)) == 3


def test_another_run_does_not_go_on_with_it(bundles: Path, source: Path, tmp_path: Path, capsys: Any) -> None:
    own, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    shutil.copy(source, own)
    arguments = [str(bundles / "mood"), str(own), "--out", str(out)]
    stopped(arguments, signal.SIGKILL)
    assert main([*arguments, "--top-k", "1"]) == 2
    assert "another top_k (now 1, then null): --restart begins again" in capsys.readouterr().err
    assert main([str(bundles / "topics"), *arguments[1:]]) == 2
    assert "another model" in capsys.readouterr().err
    with own.open("a") as file:
        file.write('{"id": 0, "text": "dull"}\n')
    assert main(arguments) == 2
    assert "another input: --restart begins again" in capsys.readouterr().err
    assert main([*arguments, "--restart", "--quiet"]) == SOME_BAD
    assert len(read_rows(out)) == ROWS + 1 - len(range(3, ROWS, 997))


def test_two_processes_do_not_write_one_output(
    bundles: Path, source: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPS, str(int(signal.SIGSTOP)), *arguments], stderr=subprocess.DEVNULL
    )
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        assert main(arguments) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert main([*arguments, "--restart"]) == 2
    finally:
        process.send_signal(signal.SIGCONT)
        process.wait(120)
    assert len(read_rows(out)) == ROWS - len(range(3, ROWS, 997))


def test_a_second_run_is_refused_until_the_first_has_its_output_in_place(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", many(3)), tmp_path / "out.parquet"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out), "--quiet"]
    second = list[subprocess.CompletedProcess[bytes]]()

    def converting(*given: Any, **named: Any) -> bool:
        second.append(run(*arguments))
        return convert(*given, **named)

    monkeypatch.setattr("service.bulk.files.convert", converting)
    assert main(arguments) == 0
    assert [(ended.returncode, b"another process is writing" in ended.stderr) for ended in second] == [
        (2, True)
    ]
    assert len(read_rows(out)) == 3 and not Path(f"{out}.partial").exists()


def test_rows_come_from_a_pipe_and_go_to_one(bundles: Path, source: Path, tmp_path: Path) -> None:
    piped = run(bundles / "mood", "-", "--out", "-", stdin=source.read_bytes())
    assert piped.returncode == SOME_BAD
    assert [json.loads(line)["id"] for line in piped.stdout.splitlines()] == [
        n for n in range(ROWS) if n % 997 != 3
    ]
    assert piped.stderr.count(b"\nrow ") == len(range(3, ROWS, 997))
    out = tmp_path / "out.csv"
    csv = b"text\n" + b"dull\n" * 10
    assert run(bundles / "mood", "-", "--out", out, "--input-format", "csv", stdin=csv).returncode == 0
    assert len(read_rows(out)) == 10


def test_a_reader_that_leaves_ends_the_run(bundles: Path, source: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(bundles / "mood"), str(source), "--out", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(120) == 1
    assert "nobody reads standard output any more" in said
    assert "Traceback" not in said


RECORDS_ALWAYS = """
import sys
import service.bulk.files as files
from service.bulk.command import main
files.RECORD_S = 0.0
sys.exit(main())
"""


@pytest.mark.usefixtures("nothing_compiled")
def test_a_full_disk_ends_the_run_which_goes_on_later(bundles: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [str(bundles / "mood"), str(source), "--out", str(out)]

    def bounded() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))

    command = [sys.executable, "-c", RECORDS_ALWAYS, *arguments]
    full = subprocess.run(command, capture_output=True, preexec_fn=bounded, timeout=120)
    assert full.returncode == 1
    assert b"the same command goes on from the last record" in full.stderr
    assert b"Traceback" not in full.stderr
    assert run(*arguments).returncode == SOME_BAD
    assert [row["id"] for row in read_rows(out)] == [n for n in range(ROWS) if n % 997 != 3]


def peak_mib(arguments: list[str]) -> float:
    """Return the peak memory of a run. Not by wait4, which counts the memory of this process before the exec."""
    process, peak = subprocess.Popen([*COMMAND, *arguments, "--quiet"]), 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        if found := re.search(r"VmHWM:\s*(\d+)", status):
            peak = int(found[1])
        time.sleep(0.02)
    assert process.returncode == 0
    return peak / 1024


@pytest.mark.parametrize(
    ("ending", "rows"),
    [
        ("jsonl", 40_000),
        *(pytest.param(e, 300_000, marks=pytest.mark.soak) for e in ("jsonl", "csv", "parquet")),
    ],
)
def test_memory_does_not_grow_with_the_file(bundles: Path, tmp_path: Path, ending: str, rows: int) -> None:
    peaks = []
    for count in (rows // 10, rows):
        words = texts(1000)
        source = write_rows(
            tmp_path / f"in.{ending}", ({"id": n, "text": words[n % 1000]} for n in range(count))
        )
        peaks.append(
            peak_mib([str(bundles / "mood"), str(source), "--out", str(tmp_path / f"out{count}.{ending}")])
        )
    assert peaks[1] < peaks[0] + 40, peaks
