"""Try what this project does on an NVIDIA GPU, within a time limit; write one report.

    python -m benchmarks.gpu_check --out runs/gpu-check

The tests of tests/gpu and three benchmarks run, each in a process of its own with a time limit: one that fails or runs
out of time is reported, and the others still run. Without a GPU, or with --small, the shapes are tiny: the same code runs,
and its numbers mean nothing. docs/gpu-check.md says what each number means.

Nothing but the standard library is needed here: a machine that lacks a package still gets its report.
"""

import argparse
import datetime
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.serve.load.process_tree import kill, tree

ROOT = Path(__file__).parents[1]
PACKAGES_VARIABLE = "GPU_CHECK_PACKAGES"
STOP_S = 5.0
"""Seconds that a step has to stop its servers after its time is over."""
MARGIN_S = 3 * STOP_S
"""Seconds of the budget that are kept for the end."""
MAX_CHARS = 40_000
"""Characters of a step's output in the report: its end."""
OK, FAILED, TIMED_OUT, NOT_RUN = "ok", "failed", "out of time", "not run"
DESCRIBE = """
import platform, shutil, subprocess, torch
from importlib.metadata import distributions
names = ("torch", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "transformers")
versions = {d.name.lower(): d.version for d in distributions(name=None)}
print("Python", platform.python_version(), *(f"{n} {versions[n]}" for n in names if n in versions), sep=", ")
if torch.cuda.is_available():
    gpu = torch.cuda.get_device_properties(0)
    print(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, capability {gpu.major}.{gpu.minor}, CUDA {torch.version.cuda}")
if shutil.which("nvidia-smi"):
    query = "driver_version,memory.used,utilization.gpu,clocks.sm,power.limit"
    subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], timeout=20)
print("cuda" if torch.cuda.is_available() else "cpu")
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the check."""

    name: str
    needs_s: float
    """Seconds that the steps before it leave for it."""
    full: str
    """Module to run and its arguments."""
    small: str


PYTEST = "pytest tests/gpu -sv --noconftest -p no:cacheprovider -o filterwarnings=default -o minversion=7"
STEPS = (
    Step("Tests", 165, PYTEST, PYTEST),
    Step(
        "Engine beside PyTorch", 95,
        "benchmarks.engine.speed --device cuda --models base large --compile --tokens 131072 --rounds 2",
        "benchmarks.engine.speed --device cpu --models tiny --lengths mixed 20 --tokens 400 --batch-tokens 200 --rounds 1",
    ),
    Step(
        "Training beside the Trainer", 165,
        "benchmarks.train.speed --tasks mlm sst2 --model base --batch 256 --no-attention-dropout --compile --rounds 1 "
        "--steps 30",
        "benchmarks.train.speed --tasks mlm sst2 --model tiny --batch 8 --no-attention-dropout --rounds 1 --steps 3",
    ),
    Step(
        "Service with lists of 64 texts", 50,
        "benchmarks.serve.closed_loop random:bert-base --precision fp16 --no-floor --texts-a-request 64 "
        "--connections 1,8,32 --seconds 3",
        "benchmarks.serve.closed_loop random:tiny --no-floor --texts-a-request 64 --connections 1 --seconds 0.5",
    ),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """Result of a step."""

    name: str
    command: str
    status: str = NOT_RUN
    seconds: float = 0.0
    output: str = ""


@dataclass(slots=True)
class Report:
    """Everything that a run of the check found."""

    command: str
    started: str
    budget_s: float
    machine: list[str] = field(default_factory=list)
    """Versions, the GPU and what nvidia-smi says."""
    is_small: bool = True
    notes: list[str] = field(default_factory=list)
    steps: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, out: Path) -> None:
        """Write report.json and report.md; files that are there are replaced."""
        for name, text in (("report.json", json.dumps(asdict(self), indent=1)), ("report.md", self.page())):
            aside = out / f"{name}.writing"
            aside.write_text(text + "\n", encoding="utf-8")
            os.replace(aside, out / name)

    def page(self) -> str:
        """Return the report as Markdown."""
        size = "Small: it tries the code and measures nothing" if self.is_small else "Full"
        lines = [f"# GPU check, {self.started}", ""]
        lines += [f"{size}. {self.seconds:.0f} s of {self.budget_s:.0f} s. Command: `{self.command}`", ""]
        lines += [f"- {line}" for line in (*self.machine, *self.notes)]
        lines += ["", "| step | status | seconds |", "|---|---|---|"]
        lines += [f"| {step.name} | {step.status} | {step.seconds:.0f} |" for step in self.steps]
        for step in self.steps:
            fence = ["```text"] if step.command.startswith(PYTEST.split()[0]) else []
            lines += ["", f"## {step.name}", "", f"`python -m {step.command}`: **{step.status}**", ""]
            lines += [*fence, step.output[-MAX_CHARS:].strip(), *("```" for _ in fence)]
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns 1 if a step failed or ran out of time."""
    began = time.monotonic()
    args = parse(arguments)
    signal.signal(signal.SIGTERM, _stop)
    args.out.mkdir(parents=True, exist_ok=True)
    given = sys.argv[1:] if arguments is None else arguments
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    report = Report(shlex.join(["python", "-m", "benchmarks.gpu_check", *given]), started, 60 * args.minutes)
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        variables = prepare(report, args, Path(folder))
        chosen = [step for step in STEPS if step.name.split()[0].lower() in args.steps]
        report.steps = [Outcome(step.name, step.small if report.is_small else step.full) for step in chosen]
        try:
            for number, outcome in enumerate(report.steps):
                left = report.budget_s - MARGIN_S - (time.monotonic() - began)
                limit = limit_s([step.needs_s for step in chosen[number:]], left)
                print(f"{outcome.name}: at most {limit:.0f} s", flush=True)
                run(outcome, limit, variables, args.out)
                print(f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
                report.seconds = round(time.monotonic() - began, 1)
                report.write(args.out)  # what is there when this process is killed stays
        finally:
            report.seconds = round(time.monotonic() - began, 1)
            report.write(args.out)
    print(report.page())
    return int(any(outcome.status != OK for outcome in report.steps))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [step.name.split()[0].lower() for step in STEPS]
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/gpu-check"), help="folder of report.md, report.json and logs")
    add("--small", action="store_true", help="tiny shapes on the CPU, also where there is a GPU")
    add("--minutes", type=float, default=8.5, help="time for everything")
    add("--steps", nargs="+", choices=names, default=names)
    add(
        "--packages", type=Path, nargs="+",
        help="folders with wheels and tar archives that are unpacked and come before what is installed, such as "
        f"onnxruntime-gpu; by default {PACKAGES_VARIABLE}, else .gpu",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    if 60 * args.minutes <= MARGIN_S:
        parser.error(f"--minutes ({args.minutes:g}) must be over {MARGIN_S / 60:g}: the end takes as long")
    args.packages = args.packages or [Path(os.environ.get(PACKAGES_VARIABLE) or ROOT / ".gpu")]
    return args


def prepare(report: Report, args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Unpack what was brought and look at the machine; return the environment of all steps."""
    site = folder / "site"
    for packages in args.packages:
        names, errors = unpack(packages, site)
        report.notes += [f"Unpacked from {packages.name}: {', '.join(names)}."] if names else []
        report.notes += [f"Not unpacked: {error}." for error in errors]
    variables = environment(site, folder / "caches", hide_gpu=args.small)
    asked = Outcome("machine", "")
    run(asked, 60, variables, folder, [sys.executable, "-c", DESCRIBE])
    report.machine = asked.output.strip().splitlines()[-4:]
    report.is_small = args.small or report.machine[-1:] != ["cuda"]
    return variables


def unpack(folder: Path, site: Path) -> tuple[list[str], list[str]]:
    """Unpack every wheel and tar archive of a folder into one; return the names of those unpacked, and the errors."""
    site.mkdir(parents=True, exist_ok=True)
    names, errors = list[str](), list[str]()
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if file.suffix == ".whl":
                with zipfile.ZipFile(file) as wheel:
                    wheel.extractall(site)
            elif ".tar" in file.suffixes:
                with tarfile.open(file) as archive:
                    archive.extractall(site, filter="data")
            else:
                continue
            names.append(file.name)
        except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, ImportError) as error:
            errors.append(f"{file.name}: {type(error).__name__}: {error}")
    return names, errors


def environment(site: Path, caches: Path, *, hide_gpu: bool = False) -> dict[str, str]:
    """Return the environment of the steps: brought packages first, CUDA's libraries found, no network.

    The service imports no torch, which would load CUDA's libraries for it. So it has to find them by itself.
    """
    paths = {"PYTHONPATH": [str(site), str(ROOT)], "LD_LIBRARY_PATH": cuda_libraries()}
    found = {
        name: os.pathsep.join(filter(None, [*first, os.environ.get(name, "")]))
        for name, first in paths.items()
    }
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        found[name] = str(caches / name.lower())
    found |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    found |= {"CUDA_VISIBLE_DEVICES": ""} if hide_gpu else {}
    return os.environ | {name: value for name, value in found.items() if value or name.startswith("CUDA")}


def cuda_libraries() -> list[str]:
    """Return the folders of CUDA's libraries among the installed packages: nvidia/cu13/lib, nvidia/cudnn/lib, ..."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return sorted({str(folder) for place in places or () for folder in Path(place).glob("*/lib")})


def limit_s(needs_s: Sequence[float], left_s: float) -> float:
    """Return the seconds for the first step left: what the later ones do not need, but at least its share."""
    first, later = needs_s[0], sum(needs_s[1:])
    return max(left_s - later, left_s * first / (first + later), 0.0)


def run(
    outcome: Outcome, limit: float, variables: dict[str, str], out: Path, command: Sequence[str] = ()
) -> None:
    """Run a step for at most `limit` seconds and fill in what came of it; its output is in a file from the first line on."""
    began, log = time.monotonic(), out / f"{outcome.name.split()[0].lower().strip(',')}.txt"
    command = command or [sys.executable, "-m", *shlex.split(outcome.command)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
            outcome.status = FAILED if code else OK
        except subprocess.TimeoutExpired:
            outcome.status = TIMED_OUT
        finally:
            stop(process)
            outcome.seconds = round(time.monotonic() - began, 1)
            outcome.output = log.read_text(encoding="utf-8", errors="replace")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started: politely first, so that a server of the step ends in its own way."""
    if process.poll() is None:
        started = [pid for pid in tree(process.pid) if pid != process.pid]
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for pid in started:  # servers lead sessions of their own and outlive what started them
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    # A process can hang in a driver, whatever it is sent.
    with suppress(RuntimeError, subprocess.TimeoutExpired):
        kill(process.pid, STOP_S)
        process.wait(STOP_S)


def _stop(*_: object) -> None:
    """End so that the running step is stopped and the report is written."""
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
