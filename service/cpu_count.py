"""How many cores this process may use.

Thread defaults elsewhere count the host's and ignore a container's quota.
"""

import os
from contextlib import suppress
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores given by affinity and by the cgroup's CPU quota, at least 1.

    A quota of 1.5 cores counts as 1: a second busy thread would be throttled in every period.
    """
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        affinity = os.cpu_count() or 1
    quota = cgroup_quota(root)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota in cores, None where there is none.

    Reads cgroup v2, then v1, on the way up to the root.
    """
    quotas = [_quota(folder) for folder in _cgroup_folders(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroup_folders(root: Path) -> list[Path]:
    """List this process's cgroup folders and their parents: a parent's quota binds too."""
    mount = root / "sys/fs/cgroup"
    folders = [mount, mount / "cpu"]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        inner = top / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if top in folder.parents]
    return list(dict.fromkeys(folders))


def _quota(folder: Path) -> float | None:
    """Read quota and period: one file in cgroup v2, two in v1."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # "max" is no number
            quota, period = map(int, " ".join((folder / name).read_text() for name in files).split())
            return quota / period if quota > 0 and period > 0 else None
    return None
