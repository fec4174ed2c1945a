import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.system import cgroup_quota, usable_cores


def write(root: Path, name: str, content: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def test_without_a_quota_the_affinity_counts(tmp_path: Path, eight_cores: None) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert usable_cores(tmp_path) == 8


def test_cgroup_v2_quota_binds(tmp_path: Path, eight_cores: None) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", "300000 100000\n")
    assert usable_cores(tmp_path) == 3


def test_a_quota_of_a_core_and_a_half_is_one_core(tmp_path: Path, eight_cores: None) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000")
    assert usable_cores(tmp_path) == 1


def test_half_a_core_is_one_core(tmp_path: Path, eight_cores: None) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000")
    assert usable_cores(tmp_path) == 1


def test_the_smallest_quota_on_the_way_up_binds(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "200000 100000")
    write(tmp_path, "sys/fs/cgroup/pod/container/cpu.max", "400000 100000")
    assert cgroup_quota(tmp_path) == 2.0


def test_cgroup_v1_quota_binds(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "3:memory:/x\n4:cpu,cpuacct:/job\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    assert cgroup_quota(tmp_path) == 2.5


def test_no_quota_in_v1_is_minus_one(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cgroup_quota(tmp_path) is None


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path) is None


RETURNED = """
from pathlib import Path
from service.system import return_freed_memory

def mapped():
    return int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) >> 10

return_freed_memory()
bytearray(2**24)  # glibc takes blocks below that size from its heap from now on
before, blocks = mapped(), [bytearray(2**20) for _ in range(32)]
held = mapped() - before
del blocks[:-1]
print(held, mapped() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not Linux")
def test_freed_memory_goes_back_to_the_system() -> None:
    said = subprocess.check_output([sys.executable, "-c", RETURNED], cwd=Path(__file__).parents[2])
    held, kept = map(int, said.split())
    assert held >= 32 and kept <= 2
