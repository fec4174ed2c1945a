"""A soak: mixed traffic for long, with faults or with more than can be done, and whether anything grows meanwhile.

    python -m benchmarks.serve.soak bundles --minutes 30                  # every task, and a fault every 20 s
    python -m benchmarks.serve.soak bundles --minutes 5 --times 10        # ten times what it can do, without faults
    python -m benchmarks.serve.soak bundles --minutes 3 --out runs/soak   # soak.json and, with matplotlib, soak.png

Each second: memory of all processes (PSS), the most files that one has open, requests by status and their p99, and the
slowest /health/live. After it: the seconds until a request takes as long as before, the gauges that are not zero, and
whether memory and files of the last quarter are over those of the second. The faults: engine or frontend killed, engine or
parent stopped for a second, the folder of the processes removed and the engine killed, a new version of a model loaded.
Requests that a killed frontend had are lost, and none besides.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.process_tree import PROC, memory_bytes, tree
from benchmarks.serve.load.running import Running, free_port, prepare_process, server, service_command
from benchmarks.serve.load.storm import Storm, paced, status_of, storm
from benchmarks.serve.load.texts import FACTS, made_up_texts
from benchmarks.serve.load.wire import connect, request_bytes
from benchmarks.serve.report.percentiles import percentile
from bert.files import atomic_write
from bert.manifest import Manifest

CLIENTS, OVERLOADING = 4, 160
"""Clients of mixed traffic, and most that wait at once when more is asked than can be done."""
FAULT_EVERY_S, STOPPED_S = 20.0, 1.0
CAPACITY_S = 5.0
SETTLED = 1.5
"""A request takes as long as before if it takes at most so many times as long."""
GAUGES = re.compile(
    r"^(bert_(?:queue_tokens|queue_texts|requests_in_flight|engine_away_\w+))(?:{.*})? (\S+)$", re.MULTILINE
)


@dataclass(slots=True)
class Second:
    """Answers and resources of the service in one second."""

    at: float
    memory_mb: float
    files: int
    statuses: dict[str, int]
    p99_ms: float
    live_ms: float
    """Longest time of /health/live."""
    fault: str = ""


@dataclass(slots=True)
class Soak:
    """The result of a soak."""

    header: list[str]
    seconds: list[Second] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; returns 1 if something grew, was lost or did not settle."""
    args = parse(arguments)
    soak = Soak([machine_line(), f"Command: {command_line('serve.soak', arguments)}"])
    print("\n".join(soak.header), flush=True)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="soak", ignore_cleanup_errors=True) as folder:
        port = free_port()
        settings = [
            "--frontends",
            "1",
            "--hung-after-s",
            "5",
            "--model-cache",
            f"{folder}/cache",
            *args.service.split(),
        ]
        bundles = Path(shutil.copytree(args.bundles, Path(folder) / "bundles"))
        command = ["env", f"TMPDIR={folder}", *service_command([bundles], port, settings)]
        ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        with server(command, port, ready, args.out.with_suffix(".log"), patience_s=120.0) as running:
            asyncio.run(run(soak, running, Path(folder), args))
    for name, value in soak.summary.items():
        print(f"{name}: {value}")
    args.out.with_suffix(".json").write_text(json.dumps(asdict(soak), indent=1), encoding="utf-8")
    with suppress(ImportError):
        draw(soak, args.out.with_suffix(".png"))
    return int(bool(soak.summary["faults found"]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("bundles", type=Path, help="a folder of bundles")
    add("--minutes", type=float, default=30.0)
    add(
        "--times",
        type=float,
        default=0.0,
        help="times the capacity that is asked of /ner; 0 is mixed traffic and faults",
    )
    add("--timeout-ms", type=int, default=5000, help="time of a request when more is asked than can be done")
    add("--service", default="", help="settings for bert-serve")
    add("--out", type=Path, default=Path("runs/soak"), help="results and log, without a suffix")
    return parser.parse_args(arguments)


async def run(soak: Soak, running: Running, folder: Path, args: argparse.Namespace) -> None:
    """Ask, watch, and summarise."""
    url, found, over = running.url, Storm(), asyncio.Event()
    lone = request_bytes(url, "/ner", {"text": "Angela Merkel met engineers from Siemens in Munich."})
    usual_ms = statistics.median([await took_ms(url, lone) for _ in range(20)])
    fault: list[str] = []
    watching = asyncio.create_task(watch(soak, running, found, fault, over))
    if args.times:
        await overload(url, found, args)
    else:
        faults = asyncio.create_task(break_things(running, folder, fault))
        await storm(url, mixed(url), CLIENTS, 60 * args.minutes, found=found)
        faults.cancel()
    ended = time.monotonic()
    while (now_ms := await took_ms(url, lone)) > SETTLED * usual_ms + 1 and time.monotonic() < ended + 30:
        await asyncio.sleep(0.05)
    settled_s = time.monotonic() - ended
    await asyncio.sleep(2.0)
    over.set()
    await watching
    soak.summary = summary(soak, found, usual_ms, now_ms, settled_s, gauges(url), with_faults=not args.times)


async def overload(url: str, found: Storm, args: argparse.Namespace) -> None:
    """Ask for so many times what can be done."""
    request = request_bytes(url, "/ner", {"text": ["word " * 180] * 16})
    capacity = (await storm(url, itertools.repeat(request), 3, CAPACITY_S)).answered_per_s
    print(f"capacity: {capacity:.2f} requests/s of 16 texts; asked: {args.times * capacity:.1f}", flush=True)
    urgent = request.replace(b"\r\n", b"\r\nx-timeout-ms: %d\r\n" % args.timeout_ms, 1)
    await paced(url, urgent, args.times * capacity, OVERLOADING, 60 * args.minutes, found)
    found.capacity = capacity


def mixed(url: str) -> "itertools.cycle[bytes]":
    """Return requests of every task of the demo bundles, round and round."""
    chance, texts = random.Random(7), made_up_texts(400)
    bodies: list[tuple[str, Mapping[str, object]]] = []
    for number, text in enumerate(texts):
        fact, question = FACTS[number % len(FACTS)]
        bodies += [
            ("/classify", {"text": text, "truncate": True}),
            ("/ner", {"text": [text] * chance.randint(1, 8)}),
            ("/qa", {"question": question, "context": fact}),
            ("/similarity", {"text": text[:200], "candidates": [other[:200] for other in texts[:5]]}),
            ("/tokenize", {"text": text}),
        ]
    return itertools.cycle([request_bytes(url, path, body) for path, body in bodies])


async def watch(soak: Soak, running: Running, found: Storm, fault: list[str], over: asyncio.Event) -> None:
    """Note each second until the event."""
    start, live_ms = time.monotonic(), [0.0]
    probing = asyncio.create_task(probe(running.url, live_ms, over))
    while not over.is_set():
        before, answered = Counter(found.statuses), len(found.latencies_ms)
        live_ms[:] = [0.0]
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 1.0)
        latencies = sorted(found.latencies_ms[answered:])
        memory, files = await asyncio.to_thread(resources, running.pid)
        soak.seconds.append(
            Second(
                round(time.monotonic() - start, 1),
                round(memory / 2**20, 1),
                files,
                dict(found.statuses - before),
                round(percentile(latencies, 0.99), 1) if latencies else 0.0,
                round(max(live_ms), 1),
                " ".join(fault),
            )
        )
        fault.clear()
    await probing


async def probe(url: str, live_ms: list[float], over: asyncio.Event) -> None:
    """Ask for /health/live ten times a second, each on a connection of its own."""
    request = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    while not over.is_set():
        with suppress(OSError, EOFError):
            live_ms.append(await took_ms(url, request))
        await asyncio.sleep(0.1)


async def took_ms(url: str, request: bytes) -> float:
    """Return the milliseconds of one request on a connection of its own."""
    start = time.monotonic()
    streams = await connect(url)
    await status_of(streams, request)
    streams[1].close()
    return 1000 * (time.monotonic() - start)


def resources(root: int) -> tuple[int, int]:
    """Return the memory of a service's processes in bytes, and the most files that one of them has open."""
    files = 0
    for pid in tree(root):
        with suppress(OSError):
            files = max(files, len(os.listdir(PROC / str(pid) / "fd")))
    return memory_bytes(root), files


async def break_things(running: Running, folder: Path, fault: list[str]) -> None:
    """Break something every FAULT_EVERY_S, in turn."""

    def pid_of(kind: str) -> int:
        return next(pid for pid in tree(running.pid) if _kind(pid) == kind)

    async def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        os.kill(pid, signal.SIGCONT)

    async def kill(kind: str) -> None:
        os.kill(pid_of(kind), signal.SIGKILL)

    async def wipe() -> None:
        for each in folder.glob("bert-serve-*"):
            shutil.rmtree(each, ignore_errors=True)
        await kill("engine")

    async def swap() -> None:
        manifest = next((folder / "bundles").glob("**/bundle.json"))
        now = Manifest.from_dict(json.loads(manifest.read_text(encoding="utf-8")))
        atomic_write(manifest, json.dumps(replace(now, version=str(next(numbers))).to_dict()))
        os.kill(running.pid, signal.SIGHUP)

    numbers = itertools.count(2)
    kinds: dict[str, Callable[[], object]] = {
        "engine killed": lambda: kill("engine"),
        "engine stopped": lambda: stop(pid_of("engine")),
        "parent stopped": lambda: stop(running.pid),
        "frontend killed": lambda: kill("frontend"),
        "folder removed, engine killed": wipe,
        "model swapped": swap,
    }
    for name in itertools.cycle(kinds):
        await asyncio.sleep(FAULT_EVERY_S)
        fault.append(name)
        with suppress(StopIteration, ProcessLookupError):  # it is being started again
            await kinds[name]()  # type: ignore[misc]


def _kind(pid: int) -> str:
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_text().split("\0")[-2]
    return ""


def gauges(url: str) -> dict[str, float]:
    """Return the gauges of waiting work that are not zero; the request that asks is not counted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        shown = response.read().decode()
    return {name: float(value) for name, value in GAUGES.findall(shown) if float(value)}


def summary(
    soak: Soak,
    found: Storm,
    usual_ms: float,
    now_ms: float,
    settled_s: float,
    left: Mapping[str, float],
    *,
    with_faults: bool,
) -> dict[str, object]:
    """Return the figures, and what is wrong with them."""
    quarter = max(1, len(soak.seconds) // 4)
    early, late = soak.seconds[quarter : 2 * quarter], soak.seconds[-quarter:]

    def grown(name: str) -> tuple[float, float]:
        first, last = (statistics.median(getattr(each, name) for each in part) for part in (early, late))
        return first, last

    memory, files, p99 = grown("memory_mb"), grown("files"), grown("p99_ms")
    live = max(each.live_ms for each in soak.seconds)
    broken = {name for name in found.statuses if name not in ("200", "429", "504")}
    wrong = [
        *(
            [f"memory grew from {memory[0]:.0f} to {memory[1]:.0f} MB"]
            if memory[1] > 1.1 * memory[0] + 10
            else []
        ),
        *([f"files grew from {files[0]:.0f} to {files[1]:.0f}"] if files[1] > files[0] + 20 else []),
        *([f"{settled_s:.1f} s until a request took as long as before"] if settled_s > 2 else []),
        *([f"gauges are not zero: {dict(left)}"] if left else []),
        *([f"answers: {sorted(broken)}"] if broken and not with_faults else []),
        *([f"/health/live took {live:.0f} ms"] if live > 50 and not with_faults else []),
    ]
    return {
        "answers": dict(found.statuses),
        "answered to capacity": round(found.answered_per_s / found.capacity, 2) if found.capacity else "",
        "memory, MB, second and last quarter": memory,
        "most files": files,
        "p99 ms": p99,
        "slowest /health/live, ms": live,
        "a lone request, ms, before and after": (round(usual_ms, 1), round(now_ms, 1)),
        "seconds until it took as long as before": round(settled_s, 2),
        "faults found": wrong,
    }


def draw(soak: Soak, file: Path) -> None:
    """Write a PNG of what was seen; raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at = [each.at for each in soak.seconds]
    figure, axes = pyplot.subplots(4, 1, figsize=(12, 12), sharex=True, layout="constrained")
    for status in sorted({name for each in soak.seconds for name in each.statuses}):
        axes[0].plot(at, [each.statuses.get(status, 0) for each in soak.seconds], label=status)
    axes[0].set_ylabel("answers a second")
    axes[0].legend()
    axes[1].plot(at, [each.p99_ms for each in soak.seconds], label="p99 of answers")
    axes[1].plot(at, [each.live_ms for each in soak.seconds], label="slowest /health/live")
    axes[1].set_ylabel("ms")
    axes[1].set_yscale("symlog")
    axes[1].legend()
    axes[2].plot(at, [each.memory_mb for each in soak.seconds])
    axes[2].set_ylabel("memory, MB (PSS)")
    axes[3].plot(at, [each.files for each in soak.seconds])
    axes[3].set_ylabel("most open files")
    axes[3].set_xlabel("seconds; lines are faults")
    for each in soak.seconds:
        for axis in axes if each.fault else ():
            axis.axvline(each.at, color="grey", alpha=0.4)
    figure.suptitle("\n".join(soak.header), fontsize=8)
    figure.savefig(file, dpi=90)
    pyplot.close(figure)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
