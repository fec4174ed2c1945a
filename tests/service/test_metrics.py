from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, values

from service.metrics import SHARED, share


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
