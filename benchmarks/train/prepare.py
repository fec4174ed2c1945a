"""Speed and memory of `bert-prepare`: by size, by parts side by side, on Ray nodes, and of reading alone.

    python -m benchmarks.train.prepare --sources '../shared/data/corpus/*-en-*.jsonl.xz' \
        --tokenizer ../shared/data/vocab/bert-base-uncased.txt --ray-python .venv-ray/bin/python

Each process has one worker. Seconds are those of a whole command, from its start, or of all that run side by side. CPU
seconds are those of all processes, so the reading that each part does for itself is in them. Memory is the most that one
command had with its worker: PSS, sampled each 0.2 s. Nodes of Ray are on this machine, with one core each, and make four
parts; Ray was started before. The benchmark fails where two indexes differ, which have the hashes of all shards.
"""

import glob
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.serve.load.process_tree import watched
from benchmarks.serve.load.ray_nodes import head_node, two_nodes, with_settings
from benchmarks.serve.load.running import last_lines, process
from training.corpus.documents import read_records
from training.corpus.shards import Corpus
from training.corpus.text_files import list_files

FEW = 2
"""Files of the smaller input."""
PREPARE = [sys.executable, "-m", "training.commands.prepare", "--processes", "1"]


def run(name: str, out: Path, *commands: list[str], is_whole: bool = True) -> str:
    """Run commands side by side; return their row of the table. Raises RuntimeError where one fails.

    Not `is_whole` where other processes do the work: then it has the seconds only.
    """
    began, before = time.monotonic(), _cpu_seconds()
    with ExitStack() as running:
        logs = [out.with_suffix(f".{number}.log") for number in range(len(commands))]
        started = [running.enter_context(process(*each)) for each in zip(commands, logs, strict=True)]
        used = [running.enter_context(watched(each.pid, 0.2)) for each in started]
        for each, log in zip(started, logs, strict=True):
            if code := each.wait():
                raise RuntimeError(f"{name} ended with {code}:\n{last_lines(log)}")
    if not is_whole:
        return f"| {name} | {time.monotonic() - began:.1f} | | | "
    seconds, cpu_s = time.monotonic() - began, _cpu_seconds() - before
    others = max(0.0, used[0].others - cpu_s / seconds / (os.cpu_count() or 1))
    peak = max(each.peak_bytes for each in used) / 2**20
    return f"| {name} | {seconds:.1f} | {cpu_s:.1f} | {peak:.0f} | {others:.0%}"


def _cpu_seconds() -> float:
    """Return the CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_speed(row: str, out: Path) -> str:
    """Return a row with the tokens of its corpus, and tokens a second."""
    tokens = sum(split["tokens"] for split in Corpus.open(out).info["splits"].values())
    return f"{row} | {tokens / 1e6:.1f} | {tokens / float(row.split('|')[2]):,.0f} |"


def on_nodes(python: str, nodes: int, options: list[str], out: Path) -> str:
    """Run the example for Ray on one node or two."""
    command = [python, "examples/ray/prepare_with_ray.py", "--parts", "4", *options]
    logs = out.with_suffix(".ray")
    logs.mkdir()
    with two_nodes(python, logs, 1, 1) if nodes == 2 else head_node(python, logs, 1) as (address, _):
        return run(
            f"4 parts, Ray nodes: {nodes}", out, with_settings(*command, RAY_ADDRESS=address), is_whole=False
        )


def reading(files: Sequence[str], folder: Path) -> None:
    """Print how fast one process reads the same text in three formats, by its CPU time."""
    plain, table = folder / "a.jsonl", folder / "a.parquet"
    lines = [record.data for file in list_files(files) for record in read_records(file)]
    plain.write_bytes(b"".join(lines))
    pq.write_table(pa.table({"text": [json.loads(line)["text"] for line in lines]}), table)
    print("\n| reading alone | million bytes of text a CPU second |\n|---|---:|")
    for sources in (list(files), [str(plain)], [str(table)]):
        began = time.process_time()
        size = sum(len(record.data) for file in list_files(sources) for record in read_records(file))
        speed = size / 1e6 / (time.process_time() - began)
        print(f"| {sources[0].rpartition('.')[2]} | {speed:,.0f} |", flush=True)


def main() -> None:
    """Measure, and print each row as it is there."""
    parser = parser_of(__doc__)
    parser.add_argument("--sources", required=True, help="pattern of .jsonl.xz files")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--ray-python", help="Python of an environment with Ray; without it Ray is left out")
    args = parser.parse_args()
    files = sorted(glob.glob(args.sources))
    print(f"{machine_line('pyarrow', 'tokenizers')}\n{command_line('train.prepare')}\n")
    print(
        "| run | seconds | CPU s | MiB | others | million tokens | tokens/s |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        few, one, two = folder / "few", folder / "one", folder / "two"
        same = ["--tokenizer", args.tokenizer]
        names = [part for file in files[:FEW] for part in ("--sources", file)]
        row = run(f"{FEW} of {len(files)} files", few, [*PREPARE, *same, *names, "--output-dir", str(few)])
        print(with_speed(row, few), flush=True)
        same += ["--sources", args.sources]
        row = run("all files", one, [*PREPARE, *same, "--output-dir", str(one)])
        print(with_speed(row, one), flush=True)
        options = [*PREPARE, *same, "--output-dir", str(two)]
        row = run("2 parts side by side", two, [*options, "--part", "1/2"], [*options, "--part", "2/2"])
        merge = run("their merge", two, [*options, "--merge"])
        print(f"{with_speed(row, two)}\n{merge} | | |", flush=True)
        outs = [two]
        for nodes in (1, 2) if args.ray_python else ():
            outs.append(out := folder / f"ray-{nodes}")
            row = on_nodes(args.ray_python, nodes, [*same, "--output-dir", str(out)], out)
            print(with_speed(row, out), flush=True)
        for out in outs:
            if (out / "corpus.json").read_bytes() != (one / "corpus.json").read_bytes():
                raise RuntimeError(f"{out.name} is not the corpus of one process")
        reading(files[:FEW], folder)


if __name__ == "__main__":
    main()
