"""CPU time and memory against children that do a known amount of both."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.serve.load.process_tree import (
    TICKS_PER_S,
    cpu_seconds,
    memory_bytes,
    parse_busy,
    parse_stat,
    tree,
    watched,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BURN = """
import time
def burn(seconds):
    while time.process_time() < seconds:
        pass
"""
READY = "print('ready', flush=True); input()"
GRANDCHILD = f"""
import subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", {BURN + "burn(0.4); " + READY!r}], **pipes)
child.stdout.readline()
print("ready", flush=True)
input()
child.communicate(b"go\\n")
print("ended", flush=True)
input()
"""
TICK_S = 1 / TICKS_PER_S


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python that runs the code, up to where it says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_name_in_a_stat_line_may_hold_anything() -> None:
    fields = ["S", "7", "8", "9", *["0"] * 7, "100", "20", "30", "50", *["0"] * 30]
    stat = parse_stat(f"42 (a (b) c) {' '.join(fields)}\n")
    assert (stat.ended, stat.parent, stat.session) == (False, 7, 9)
    assert stat.cpu_s == 200 / TICKS_PER_S


def test_idle_time_and_waiting_for_disks_are_not_busy() -> None:
    text = "cpu  100 20 30 9999 8888 4 5 41 7 7\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert parse_busy(text) == 200 / TICKS_PER_S


def test_cpu_time_is_what_the_process_itself_counts() -> None:
    report = "print('ready', flush=True); print(time.process_time(), flush=True); input()"
    with child(f"{BURN}\nburn(0.5)\n{report}") as process:
        assert process.stdout is not None
        own = float(process.stdout.readline())
        assert abs(cpu_seconds(process.pid) - own) < 0.2 * own + 4 * TICK_S


def test_children_count_while_they_live_and_after_they_were_waited_for() -> None:
    with child(GRANDCHILD) as process:
        assert process.stdin is not None and process.stdout is not None
        assert len(tree(process.pid)) == 2
        living = cpu_seconds(process.pid)
        assert living >= 0.4 - 2 * TICK_S
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert len(tree(process.pid)) == 1
        assert cpu_seconds(process.pid) >= living - 2 * TICK_S


def test_a_process_tree_does_not_hold_its_parent() -> None:
    with child(READY) as process:
        assert list(tree(process.pid)) == [process.pid]


def test_memory_that_a_child_holds_is_seen() -> None:
    size = 64 * 2**20
    with child(READY) as small, child(f"held = b'x' * {size}; {READY}") as large:
        grown = memory_bytes(large.pid) - memory_bytes(small.pid)
    assert 0.9 * size < grown < 1.2 * size


def test_a_watched_stretch_holds_only_its_own_cpu_time() -> None:
    code = f"{BURN}\nburn(0.4)\nprint('ready', flush=True)\ninput()\nburn(0.7)\nprint('done', flush=True)\ninput()"
    with child(code) as process:
        assert process.stdin is not None and process.stdout is not None
        with watched(process.pid, every_s=0.01) as usage:
            process.stdin.write("go\n")
            process.stdin.flush()
            process.stdout.readline()
        assert 0.3 - 4 * TICK_S < usage.cpu_s < 0.5
        assert 0 <= usage.others <= 1.1
        assert usage.peak_bytes > 2**20


def test_a_process_that_is_gone_uses_nothing() -> None:
    with child(READY) as process:
        gone = process.pid
    assert tree(gone) == {} and cpu_seconds(gone) == 0 and memory_bytes(gone) == 0
