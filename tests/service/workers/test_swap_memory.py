"""A new version that surely does not fit into the memory is refused before it is opened; one that hangs is given up."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from bert.errors import BundleError
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from service.engine.models import OpenedModel
from service.system import MemoryBound, free_memory, total_memory
from service.workers import served_bundles
from service.workers.served_bundles import check_memory
from tests.support.live import serving

GIB = 2**30
V2 = ("memory.max", "memory.current", "active_file", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file")


def test_a_bundle_that_does_not_fit_is_refused_with_the_numbers(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundles / "mood"
    needed = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".onnx", ".npy"))
    monkeypatch.setattr(served_bundles, "free_memory", lambda: needed)
    check_memory(folder, [])
    monkeypatch.setattr(served_bundles, "free_memory", lambda: needed - 1)
    with pytest.raises(
        BundleError, match=r"at least 0 MiB of memory beside what is served, and 0 MiB are free"
    ):
        check_memory(folder, [])
    served = BundleLoader(find_bundles([bundles / "names"]), threads=1).open(bundles / "names")
    check_memory(folder, [served])  # over one base: their tables are in memory once
    monkeypatch.setattr(served_bundles, "free_memory", lambda: None)
    check_memory(folder, [])


@pytest.mark.parametrize("names", [V2, V1], ids=["v2", "v1"])
def test_the_free_memory_is_what_the_tightest_limit_leaves(tmp_path: Path, names: tuple[str, ...]) -> None:
    limit, usage, active, inactive = names
    is_v2 = names is V2
    for file, text in {
        "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n",
        "proc/self/cgroup": "0::/a/b\n" if is_v2 else "4:memory:/a/b\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert (free_memory(tmp_path), total_memory(tmp_path)) == (8 * GIB, 64 * GIB)
    outer = tmp_path / "sys/fs/cgroup" / ("a" if is_v2 else "memory/a")
    for folder, most in ((outer, str(4 * GIB)), (outer / "b", "max" if is_v2 else str(2**63 - 4096))):
        folder.mkdir(parents=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text(f"{3 * GIB}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{active} {GIB // 2}\n{inactive} {GIB // 4}\n")
    assert free_memory(tmp_path) == GIB + GIB // 2 + GIB // 4
    assert total_memory(tmp_path) == 4 * GIB
    (outer / usage).write_text(f"{5 * GIB}\n")
    assert free_memory(tmp_path) == 0


@pytest.mark.parametrize("names", [V2, V1], ids=["v2", "v1"])
def test_a_process_may_map_what_its_limit_leaves_but_for_a_part(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    limit, usage, active, inactive = names
    folder = tmp_path / "sys/fs/cgroup" / ("" if names is V2 else "memory")
    for file, content in {
        tmp_path / "proc/meminfo": f"MemTotal: {64 * 2**20} kB\n",
        tmp_path / "proc/self/status": f"RssAnon: {2**19} kB\nVmData:\t {2**20} kB\n",
        folder / limit: str(16 * GIB),
        folder / usage: str(9 * GIB),
        folder / "memory.stat": f"{active} {GIB}\n{inactive} {GIB}\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    bound = MemoryBound(tmp_path)
    assert bound.bytes() == GIB + (16 - 7 - 1) * GIB
    status = tmp_path / "proc/self/status"
    status.write_text(f"RssAnon: {2**19} kB\nVmData:\t {3 * 2**20} kB\n")  # 2 GiB are not used yet
    assert bound.bytes() == 3 * GIB + (16 - 7 - 1 - 2) * GIB
    (folder / usage).write_text(str(17 * GIB))
    assert bound.bytes() == 3 * GIB + GIB // 16, "some small blocks"
    (folder / limit).write_text("max" if names is V2 else str(2**63 - 4096))
    assert bound.bytes() is None


def test_it_is_known_here() -> None:
    free = free_memory()
    assert free is None or free > 0


def test_a_load_that_hangs_is_given_up_and_the_service_goes_on(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    ended = threading.Event()
    with serving(bundles=[tmp_path], admin_api_key="correct-horse", load_timeout_s=1) as live:
        opened = BundleLoader.open

        def hang(self: BundleLoader, folder: Path, **options: Any) -> OpenedModel:
            if folder.name == "mood":
                ended.wait(120)
            return opened(self, folder, **options)

        monkeypatch.setattr(BundleLoader, "open", hang)
        for name, status in (("mood", 409), ("names", 200)):
            assert live.post(f"/models/{name}/unload", {}, x_api_key="correct-horse").status == 200
            reply = live.post(f"/models/{name}/load", {}, x_api_key="correct-horse")
            assert reply.status == status
            assert status == 200 or "not done after 1 s (load_timeout_s)" in reply.json["detail"]
        ended.set()
