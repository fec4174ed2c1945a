import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, values

from service.metrics import SHARED, AllocatedFile, share


def test_files_of_numbers_have_their_disk_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Writing to a mapped page without it would kill the process, so it is taken when a file is made and when it grows."""
    monkeypatch.setenv(SHARED, str(tmp_path))
    for name in ("ValueClass", "MmapedDict"):
        monkeypatch.setattr(values, name, getattr(values, name))
    share("frontend", tmp_path)
    registry = CollectorRegistry()
    counter = Counter("films", "Films.", ("name",), registry=registry)
    sizes = set()
    for number in range(1500):
        counter.labels(f"ö{number}" * 8).inc()
        status = (tmp_path / "counter_frontend.db").stat()
        assert status.st_blocks * 512 >= status.st_size
        sizes.add(status.st_size)
    assert len(sizes) > 2


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_file_of_numbers_is_never_seen_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A scrape reads all files of the folder at any time, and fails on one without its first page."""
    seen, allocate = list[list[str]](), os.posix_fallocate

    def watched(*given: int) -> None:
        seen.append([file.name for file in tmp_path.glob("*.db")])
        allocate(*given)

    monkeypatch.setattr(os, "posix_fallocate", watched)
    AllocatedFile(str(tmp_path / "counter_engine.db")).close()
    assert seen == [[]]
    assert list(AllocatedFile.read_all_values_from_file(str(tmp_path / "counter_engine.db"))) == []
