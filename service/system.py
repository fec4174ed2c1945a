"""What this process may use, and how it ends: cores, memory, signals and exit codes.

While a process is still importing, which takes seconds, a signal ends it at once. So this module imports nothing heavy.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

HANG_UP: int | None = getattr(signal, "SIGHUP", None)
"""Signal that has the service look at its bundles again; None on Windows."""
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command; bert-serve is not ended by HANG_UP."""

FAILURE = 1
"""Exit code of a service that could not start."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C interrupted, as in shells."""


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use, by affinity and by the cgroup's CPU quota; at least 1.

    Thread defaults elsewhere count the host's and ignore a container's quota. A quota of 1.5 cores counts as 1: a second
    busy thread would be throttled in every period.
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


def _cgroup_folders(root: Path, controller: str = "cpu") -> list[Path]:
    """List this process's cgroup folders and their parents: a parent's limit binds too."""
    mount = root / "sys/fs/cgroup"
    folders = [mount, mount / controller]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        inner = top / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if top in folder.parents]
    return list(dict.fromkeys(folders))


def _quota(folder: Path) -> float | None:
    """Read quota and period: one file in cgroup v2, two in v1."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # "max" is not a number
            quota, period = map(int, " ".join((folder / name).read_text() for name in files).split())
            return quota / period if quota > 0 and period > 0 else None
    return None


def allow_open_files(count: int) -> int:
    """Raise this process's limit of open files to `count` where that is allowed; return how many it may open."""
    try:
        import resource  # not on Windows
    except ImportError:
        return count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        with suppress(OSError, ValueError):  # macOS has another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return count if soft == resource.RLIM_INFINITY else soft


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that can be taken, by the machine's and the cgroups' limits; None if nothing tells.

    The page cache counts as free.
    """
    found = [_free_of(folder) for folder in _cgroup_folders(root, "memory")]
    with suppress(OSError, ValueError, KeyError):
        found.append(1024 * int(_fields(root / "proc/meminfo")["MemAvailable:"]))
    return min((free for free in found if free is not None), default=None)


def total_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that the machine has or, if lower, the cgroups allow; None if nothing tells."""
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is not a number
                found.append(int((folder / name).read_text()))
    with suppress(OSError, ValueError, KeyError):
        found.append(1024 * int(_fields(root / "proc/meminfo")["MemTotal:"]))
    return min(found, default=None)


class MemoryBound:
    """Has allocations fail that do not fit into the cgroup's limit: past it the kernel kills, all processes on cgroup v2.

    The limit, RLIMIT_DATA, counts what is mapped to be written (Linux 4.7). Some of that is never used, stacks for the
    most part, and some is not used yet; the least of the last minute tells the one from the other.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """Set nothing yet."""
        self._root, self._unused = root, deque[int](maxlen=60)

    def set(self) -> None:
        """Set the limit; call it every second, as other processes take memory too."""
        try:
            import resource  # not on Windows
        except ImportError:
            return
        bound, (_, hard) = self.bytes(), resource.getrlimit(resource.RLIMIT_DATA)
        with suppress(OSError, ValueError):  # above the hard limit
            resource.setrlimit(resource.RLIMIT_DATA, (hard if bound is None else bound, hard))

    def bytes(self) -> int | None:
        """Return how many bytes this process may map; None without a limit.

        Other processes keep a sixteenth of the cgroup's limit, or half of what is free if that is less.
        """
        most, found = total_memory(self._root), map(_free_of, _cgroup_folders(self._root, "memory"))
        free = min((each for each in found if each is not None), default=None)
        if free is None or most is None or free > most:  # v1 calls no limit an enormous one
            return None
        more = max(free - most // 16, free // 2)
        with suppress(OSError, ValueError, KeyError):
            status = _fields(self._root / "proc/self/status")
            mapped, used = (1024 * int(status[name]) for name in ("VmData:", "RssAnon:"))
            self._unused.append(mapped - used)
            return max(used + min(self._unused) + more, mapped + more // 8)  # small blocks are needed always
        return None


def _free_of(folder: Path) -> int | None:
    """Return what a cgroup's memory limit leaves: its files have other names in v2 and in v1."""
    for limit, usage, cached in (
        ("memory.max", "memory.current", ("active_file", "inactive_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    ):
        with suppress(OSError, ValueError, KeyError):  # "max" is not a number
            most, used = (int((folder / name).read_text()) for name in (limit, usage))
            stat = _fields(folder / "memory.stat")
            return max(0, most - used + sum(int(stat[name]) for name in cached))
    return None


def _fields(file: Path) -> dict[str, str]:
    """Return the first two words of each line."""
    return {words[0]: words[1] for line in file.read_text().splitlines() if len(words := line.split()) > 1}


def release_free_memory() -> None:
    """Give freed memory back to the system, if the C library can.

    glibc keeps free memory below a block in use: a sixth of the process with four models in float32.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory() -> None:
    """Have the C library give each block of 128 KiB and more back to the system once it is freed.

    glibc raises that size up to 32 MiB as blocks are freed, and keeps smaller ones: what a process maps then does not tell
    what it holds.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD


def run_in_background() -> None:
    """Let this process run only while no other wants the processor, and be the first to be killed if memory runs out."""
    os.nice(19)
    with suppress(AttributeError, OSError):  # not on macOS
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def file_stamp(file: Path | None) -> tuple[int, ...] | None:
    """Return what changes when a file does, also if a link to it is moved; None if there is no such file."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino, found.st_size) if found is not None else None


def exit_at_once(_: int, __: FrameType | None) -> None:
    """End the process with code 0; an exception during an import might be taken for a failed import."""
    os._exit(0)


def is_ignored(number: int) -> bool:
    """Tell whether this process was started to ignore a hang-up, as by nohup."""
    return number == HANG_UP and signal.getsignal(number) == signal.SIG_IGN


def on_hang_up(handler: Callable[[], object]) -> None:
    """Call `handler` on HANG_UP, unless this process ignores it."""
    is_main = threading.current_thread() is threading.main_thread()
    if HANG_UP is not None and is_main and not is_ignored(HANG_UP):
        signal.signal(HANG_UP, lambda *_: handler())


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *more: int) -> Iterator[None]:
    """Handle STOPS, and `more` signals, within the block."""
    caught = (*more, *(number for number in STOPS if not is_ignored(number)))
    before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def exit_on_stop(code: int = 0) -> AbstractContextManager[None]:
    """End this process with an exit code if a signal of STOPS arrives within the block."""
    is_main = threading.current_thread() is threading.main_thread()
    return handled(lambda *_: os._exit(code)) if is_main else nullcontext()
