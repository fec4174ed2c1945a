"""Bundles of one base model share their embedding tables in memory."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.errors import BundleIntegrityError
from bert.tokenizer import Tokenizer
from service.engine.onnx_engine import _TABLES, OnnxEngine, shared_tables
from tests.support.tiny import SPECS, write_tiny_bundle

WORDS = "bert.embeddings.word_embeddings.weight"


def test_bundles_with_equal_tables_share_one_in_memory(bundles: Path) -> None:
    mood, names = (shared_tables(read_bundle(bundles / name)) for name in ("mood", "names"))
    assert mood[WORDS] is names[WORDS]
    assert mood.keys() == names.keys() and len(mood) == 2


def test_a_table_is_freed_with_the_last_engine_that_uses_it(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "one", "one", SPECS["mood"], 0, vocab_size=500)
    bundle = read_bundle(tmp_path / "one")
    sha256 = bundle.manifest.files[f"{WORDS}.npy"]
    engines = [OnnxEngine(bundle, threads) for threads in (1, 2)]
    assert sha256 in _TABLES
    del engines[0]
    gc.collect()
    assert sha256 in _TABLES
    del engines
    gc.collect()
    assert sha256 not in _TABLES


def test_the_graph_reads_the_shared_table_and_not_its_file(tmp_path: Path) -> None:
    """A file that is overwritten under a running service must not change its answers."""
    write_tiny_bundle(tmp_path / "one", "one", SPECS["meaning"], 0)
    bundle = read_bundle(tmp_path / "one")
    tokenizer = Tokenizer.load(bundle.tokenizer_path)
    text = tokenizer.single(tokenizer.pieces(["a warm film"])[0])
    engine = OnnxEngine(bundle, 1)
    before = engine.run([text]).texts
    file = bundle.folder / f"{WORDS}.npy"
    file.write_bytes(bytes(file.stat().st_size))
    beside = OnnxEngine(bundle, 1)  # opened from the overwritten file, with the table that is in memory
    for found in (engine, beside):
        assert np.array_equal(found.run([text]).texts[0], before[0])


def test_a_table_that_changed_since_its_hash_was_checked_is_refused(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "one", "one", SPECS["mood"], 0, vocab_size=501)
    bundle = read_bundle(tmp_path / "one")
    with (bundle.folder / f"{WORDS}.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"abcd")
    with pytest.raises(BundleIntegrityError, match=r"word_embeddings\.weight\.npy has sha256 .* was changed"):
        OnnxEngine(bundle, 1)


MEASURE = """
import sys
from pathlib import Path
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader

def resident():
    # Linux: the second number of statm, in pages of 4 KiB or more
    import os
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

one, four = (Path(argument) for argument in sys.argv[1:])
def load(folder):
    return BundleLoader(find_bundles([folder]), threads=1, multi_slot_threads=2).load(2)

first = load(one)  # what is loaded once for whatever number of models
before = resident()
loaded = load(four)
assert len(loaded) == 4 and all(model.multi_slot_engine for model in loaded.values())
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_eight_sessions_of_four_models_take_the_memory_of_one_table(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "one" / "first", "first", SPECS["mood"], 9)
    for seed, name in enumerate(("mood", "names", "reader", "meaning")):
        write_tiny_bundle(tmp_path / "four" / name, name, SPECS[name], seed, vocab_size=200_000)
    table = (tmp_path / "four" / "mood" / f"{WORDS}.npy").stat().st_size
    assert table > 25_000_000
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "one"), str(tmp_path / "four")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 2.5 * table  # unshared: 8 tables
