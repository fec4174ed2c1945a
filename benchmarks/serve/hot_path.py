"""The cost of a request beside the engine: CPU time of the whole service, with an engine that answers at once.

    python -m benchmarks.serve.hot_path bundles
    python -m benchmarks.serve.hot_path bundles --against ../before    # another checkout, in turns with this one
    python -m benchmarks.serve.hot_path bundles --other "--batch-tokens 512 --access-log"    # other settings, in turns
    python -m benchmarks.serve.hot_path bundles --kinds sentence --connections 8 --profile runs/hot-path.txt
    python -m benchmarks.serve.hot_path bundles --frontends 1          # the default of bert-serve: an engine process

User and system time of the service's processes for a request, in microseconds, and which part of it their first threads
had, on which the event loops run. CPU time depends less than time by the wall on what else the machine does; what is left
of that falls on both checkouts, which take turns.
"""

import argparse
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.loops import closed_loop
from benchmarks.serve.load.process_tree import PROC, tree
from benchmarks.serve.load.running import ROOT, Running, free_port, prepare_process, server
from benchmarks.serve.load.texts import FACTS, SENTENCES, made_up_texts
from benchmarks.serve.load.wire import Request, request_bytes
from benchmarks.serve.report.percentiles import Spread
from service.engine.bundle_folders import find_bundles

GOAL_US = 400
LIST_TEXTS = 64
KINDS = ("sentence", "list", "ner", "qa")
TASK_OF = {"sentence": "classification", "list": "classification", "ner": "ner", "qa": "qa"}
SETTINGS = "--batch-tokens 512"


@dataclass(slots=True)
class Costs:
    """Microseconds of CPU a request, a figure for each round."""

    all_us: list[float] = field(default_factory=list)
    loop_us: list[float] = field(default_factory=list)
    """CPU time of the event loops' threads alone."""
    rates: list[float] = field(default_factory=list)
    """Requests a second; on a machine that does other things too it says little."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(machine_line())
    print(f"Command: {command_line('serve.hot_path', arguments)}", flush=True)
    found = find_bundles(args.bundles)
    tasks = {each.task for each in found.values()}
    kinds = [kind for kind in args.kinds.split(",") if TASK_OF[kind] in tasks]
    there = (args.against or ROOT).resolve(), args.service if args.other is None else args.other
    both = [(ROOT, args.service), *([there] if args.against or args.other is not None else [])]
    with ExitStack() as stack:
        services = [stack.enter_context(_service(list(found), *each, args)) for each in both]
        print(
            f"\n| request | connections | requests/s | CPU us/request (goal {GOAL_US}) | of it the event loop |"
            f"{' there | ratio |' if both[1:] else ''}\n|---|---|---|---|---|{'---|---|' if both[1:] else ''}"
        )
        for kind in kinds:
            for connections in map(int, args.connections.split(",")):
                print(row(kind, connections, measured(services, kind, connections, args)), flush=True)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("bundles", type=Path, nargs="+", help="bundles for classification, ner and qa, or folders of them")
    add("--kinds", default=",".join(KINDS), help=f"of requests; a list has {LIST_TEXTS} sentences")
    add("--connections", default="1,8,32", help="comma-separated")
    add("--seconds", type=float, default=3.0, help="of each measurement")
    add("--rounds", type=int, default=3)
    add("--against", type=Path, help="another checkout, to compare with")
    add("--frontends", type=int, default=0, help="0: one process; 1 and more: an engine process beside them")
    add("--service", default=SETTINGS, help="settings for bert-serve")
    add("--other", help="settings to compare with; by default those of --service")
    add("--profile", type=Path, help="file for a profile of the event loop's thread, which slows it down")
    add("--log", type=Path, default=Path("runs/hot-path.log"), help="the service's log")
    args = parser.parse_args(arguments)
    if args.profile and args.frontends:
        parser.error("--profile looks at one process: leave --frontends out")
    return args


def requests_of(kind: str, url: str) -> list[Request]:
    """Return what is sent, round and round; the same texts every time."""
    texts = made_up_texts(2000, mixture=SENTENCES)
    bodies: list[tuple[str, Mapping[str, object]]]
    match kind:
        case "list":
            starts = range(0, len(texts) - LIST_TEXTS + 1, LIST_TEXTS)
            bodies = [("/classify", {"text": texts[at : at + LIST_TEXTS], "truncate": True}) for at in starts]
        case "ner":
            bodies = [("/ner", {"text": text}) for text in texts]
        case "qa":
            bodies = [("/qa", {"question": question, "context": fact}) for fact, question in FACTS]
        case _:
            bodies = [("/classify", {"text": text, "truncate": True}) for text in texts]
    return [[request_bytes(url, path, body)] for path, body in bodies]


def measured(
    services: Sequence[Running], kind: str, connections: int, args: argparse.Namespace
) -> list[Costs]:
    """Measure the services in turns; the first round only warms them up."""
    costs = [Costs() for _ in services]
    for number in range(args.rounds + 1):
        for running, cost in zip(services, costs, strict=True):
            requests = requests_of(kind, running.url)
            before = cpu_us(running.pid)
            load = closed_loop(running.url, requests, connections, args.seconds if number else 0.5)
            used = [after - then for after, then in zip(cpu_us(running.pid), before, strict=True)]
            if number:
                cost.all_us.append(used[0] / len(load.latencies_ms))
                cost.loop_us.append(used[1] / len(load.latencies_ms))
                cost.rates.append(load.requests_per_s)
    return costs


def cpu_us(pid: int) -> tuple[float, float]:
    """Return the CPU time so far of a process and its children, and of their first threads, on which the event loops run.

    From schedstat, in nanoseconds: `stat` counts hundredths of a second.
    """
    files = [file for each in tree(pid) for file in (PROC / str(each) / "task").glob("*/schedstat")]
    used = [(file, int(file.read_text().split()[0]) / 1000) for file in files]
    firsts = [us for file, us in used if file.parent.name == file.parents[2].name]
    return sum(us for _, us in used), sum(firsts)


def row(kind: str, connections: int, costs: Sequence[Costs]) -> str:
    """Return a line of the table: the first service's figures, and how they compare with the second's."""
    here, *others = costs
    cells = [kind, str(connections), f"{statistics.median(here.rates):.0f}"]
    cells += [Spread.of(here.all_us).text(), f"{statistics.median(here.loop_us):.0f}"]
    for there in others:
        ratios = [a / b for a, b in zip(here.all_us, there.all_us, strict=True)]
        cells += [Spread.of(there.all_us).text(), Spread.of(ratios).text(2)]
    return f"| {' | '.join(cells)} |"


@contextmanager
def _service(
    folders: Sequence[Path], checkout: Path, given: str, args: argparse.Namespace
) -> Iterator[Running]:
    """Serve the bundles with a checkout's code and these settings until the block ends."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    file = Path(__file__).with_name("load") / "instant_service.py"
    variables = [f"PYTHONPATH={checkout}", *([f"PROFILE={args.profile.resolve()}"] if args.profile else [])]
    bundles = ",".join(str(folder.resolve()) for folder in folders)
    settings = ["--bundles", bundles, "--port", str(port), *shlex.split(given)]
    variables.append(f"BERT_SERVE_FRONTENDS={args.frontends}")
    command = ["env", *variables, sys.executable, "-P", str(file), *settings]
    ready = f"GET /health/ready HTTP/1.1\r\nhost: {url[7:]}\r\n\r\n".encode()
    log = args.log.with_stem(f"{args.log.stem}-{port}")
    with server(command, port, ready, log, patience_s=120.0) as running:
        yield running


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
