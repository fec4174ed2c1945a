"""What was in the engine when its process died is known afterwards, and how often it was."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

from service.workers.crash_log import MOST_KEYS, PLACES, FileLedger, crashes

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, time
from pathlib import Path
from service.workers.crash_log import FileLedger, crashes

path = Path(sys.argv[1])
print(sorted(crashes(path).items()), flush=True)
ledger, places = FileLedger(path), {}
for line in sys.stdin:
    name, *keys = line.split()
    if keys:
        places[name] = ledger.begin([int(key) for key in keys])
    else:
        ledger.end(places[name])
    print("noted", flush=True)
"""
LARGEST = 2**64 - 1


def died(path: Path, *lines: str) -> None:
    """Note batches in a process of its own, and kill it: `name key key` begins one, `name` ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        for line in lines:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "noted\n"
        process.kill()
        assert process.wait(10) < 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.ledger"


def test_what_is_in_the_engine_of_a_process_that_is_killed_is_known(path: Path) -> None:
    died(path, "a 1 2 3", f"b {LARGEST}", "c 0 3")
    assert crashes(path) == {0: 1, 1: 1, 2: 1, 3: 1, LARGEST: 1}


def test_what_has_left_the_engine_is_not(path: Path) -> None:
    died(path, "a 1 2", "b 3", "a", "c 4 5 6", "c", "d 7", "d", "e 8")
    assert crashes(path) == {3: 1, 8: 1}


def test_a_short_note_in_the_place_of_a_long_one_leaves_nothing_of_it(path: Path) -> None:
    died(path, "a 1 2 3 4 5", "a", "b 9")
    assert crashes(path) == {9: 1}


def test_deaths_add_up_whatever_lies_between(path: Path) -> None:
    died(path, "a 1 2")
    died(path, "a 1")
    died(path)
    died(path, "a 3 4", "b 1 3")
    assert crashes(path) == {1: 3, 2: 1, 3: 1, 4: 1}


def test_a_death_is_counted_once_however_often_it_is_asked(path: Path) -> None:
    died(path, "a 1")
    assert crashes(path) == crashes(path) == {1: 1}


def test_before_the_first_death_there_is_nothing(path: Path) -> None:
    assert crashes(path) == Counter()
    FileLedger(path)
    assert crashes(path) == {}


def test_keys_beyond_a_place_are_not_noted_and_harm_no_neighbour(path: Path) -> None:
    ledger = FileLedger(path)
    places = [ledger.begin([10_000 + n]) for n in range(2)]
    assert ledger.begin(range(1, 2 * MOST_KEYS + 1)) >= 0
    places.append(ledger.begin([20_000]))
    assert crashes(path).keys() == {10_000, 10_001, 20_000, *range(1, MOST_KEYS + 1)}


def test_batches_beyond_the_places_are_not_noted_and_places_come_back(path: Path) -> None:
    ledger = FileLedger(path)
    places = [ledger.begin([n]) for n in range(1, PLACES + 1)]
    assert sorted(places) == list(range(PLACES))
    assert [ledger.begin([1000 + n]) for n in range(3)] == [-1, -1, -1]
    ledger.end(-1)
    for place in places[:2]:
        ledger.end(place)
    assert sorted(ledger.begin([n]) for n in (2001, 2002, 2003)) == sorted([-1, *places[:2]])
    noted = crashes(path).keys()
    assert len(noted) == PLACES and {2001, 2002} <= noted and not {1, 2, 1000, 2003} & noted


def test_threads_that_end_batches_do_not_lose_places(path: Path) -> None:
    ledger = FileLedger(path)

    def work(keys: Sequence[int]) -> None:
        for key in keys:
            ledger.end(ledger.begin([key]))

    threads = [Thread(target=work, args=(range(n, 20_000, 4),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ledger.begin([1]) for _ in range(PLACES)) == list(range(PLACES))
