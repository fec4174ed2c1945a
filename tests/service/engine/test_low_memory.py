"""Batches that get no memory run alone and in halves, with an engine that has as much as the test says, and a real one."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bert.errors import OutOfMemoryError
from bert.tokenizer import Encoding
from service.engine.low_memory import LowMemory
from service.engine.models import Outputs
from tests.support.live import eventually
from tests.support.scheduler_bench import text

ROOT = Path(__file__).parents[3]


@dataclass
class SmallEngine:
    """Holds so many tokens at once, in all batches together."""

    capacity: int
    used: int = 0
    batches: list[int] = field(default_factory=list)
    """Tokens of the batches that ran."""
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_pythons: bool = False
    """What is around the graph gets no memory, and not the graph."""

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        tokens = sum(map(len, encodings))
        with self.lock:
            if self.used + tokens > self.capacity:
                raise MemoryError if self.is_pythons else OutOfMemoryError(tokens)
            self.used += tokens
        assert self.gate.wait(120)
        with self.lock:
            self.used -= tokens
            self.batches.append(tokens)
        return Outputs([np.full((1, 1), encoding.ids[0], np.float32) for encoding in encodings], 0.5)


def open_engine(capacity: int, *, is_pythons: bool = False) -> SmallEngine:
    engine = SmallEngine(capacity, is_pythons=is_pythons)
    engine.gate.set()
    return engine


def marks(outputs: Outputs) -> list[int]:
    return [int(output[0, 0]) for output in outputs.texts]


@pytest.mark.parametrize("is_pythons", [False, True])
def test_a_batch_runs_in_halves_until_each_fits(is_pythons: bool) -> None:
    engine, counted = open_engine(25, is_pythons=is_pythons), list[str]()
    texts = [text(10, mark) for mark in range(7)]
    outputs = LowMemory(counted.append).run("m", engine, texts)
    assert marks(outputs) == list(range(7))
    assert engine.batches == [10, 20, 20, 20] and outputs.padding_ratio == 0.5
    assert counted == ["m"]


def test_a_batch_that_fits_runs_as_it_is() -> None:
    engine, counted = open_engine(100), list[str]()
    assert marks(LowMemory(counted.append).run("m", engine, [text(10, 1), text(20, 2)])) == [1, 2]
    assert engine.batches == [30] and not counted


@pytest.mark.parametrize("is_pythons", [False, True])
def test_a_text_that_does_not_fit_alone_is_named(is_pythons: bool) -> None:
    with pytest.raises(OutOfMemoryError, match="a text of 30 tokens needs more memory"):
        LowMemory().run("m", open_engine(25, is_pythons=is_pythons), [text(10), text(30)])


def test_what_gets_no_memory_waits_for_others_and_then_runs_alone() -> None:
    counted = list[str]()
    engine, memory = SmallEngine(30), LowMemory(counted.append)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(memory.run, "m", engine, [text(20, 1)])
        eventually(lambda: engine.used == 20)
        lacking = pool.submit(memory.run, "m", engine, [text(20, 2)])
        eventually(lambda: counted == ["m"] and (memory._turn.locked() or lacking.done()))
        assert not lacking.done(), "it did not wait for the other"
        later = pool.submit(memory.run, "m", engine, [text(10, 3)])
        engine.gate.set()
        assert [marks(each.result(120)) for each in (first, lacking, later)] == [[1], [2], [3]]


def test_it_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    counted, engine = list[str](), open_engine(10)
    memory = LowMemory(counted.append)
    for _ in range(3):
        memory.run("mood", engine, [text(10), text(10)])
    assert counted == ["mood"] * 3
    (record,) = caplog.records
    assert "mood: no memory for a batch of 20 tokens" in record.getMessage()


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from bert.encoding import Encoding
from bert.errors import OutOfMemoryError
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from service.engine.low_memory import LowMemory
from service.engine.sample_texts import sample_text

folder = Path(sys.argv[1])
engine = BundleLoader(find_bundles([folder]), threads=1).open(folder).engine
plain = sample_text(512)
rest = (plain.segment_ids, plain.offsets, plain.word_ids, plain.sequence_ids)
texts = [Encoding(np.full(512, mark, np.int32), *rest) for mark in range(64)]

def limit(more):
    mapped = Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(mapped) + more if more else -1, -1))

limit(64 * 2**20)
try:
    engine.run(texts)
except OutOfMemoryError as error:
    print(error)
in_parts = LowMemory().run("m", engine, texts)
try:
    LowMemory().run("m", engine, [sample_text(4096)])
except OutOfMemoryError as error:
    print(error)
few = LowMemory().run("m", engine, texts[:2])
limit(0)
whole = engine.run(texts)
assert np.isfinite(engine.run([sample_text(4096)]).texts[0]).all()
np.testing.assert_allclose(np.concatenate(in_parts.texts), np.concatenate(whole.texts), atol=1e-5)
np.testing.assert_allclose(np.concatenate(few.texts), np.concatenate(whole.texts[:2]), atol=1e-5)
"""
"""Runs batches with 64 MiB of memory and then with all there is."""


@pytest.mark.slow
def test_onnxruntime_says_that_there_is_no_memory_and_goes_on(long_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(long_bundle)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line[:44] for line in done.stdout.splitlines()] == [
        "a text of 32768 tokens needs more memory tha",
        "a text of 4096 tokens needs more memory than",
    ]
