"""Try everything that this project does on a GPU, within nine minutes; write one report.

    python -m benchmarks.gpu_check --out runs/gpu-check

Without a GPU, or with --small, the shapes are tiny: the same code runs, and its numbers mean nothing. Each section is a
process of its own with a time limit; one that fails or runs out of time is recorded, and the others still run.
docs/gpu-check.md says what each number means.
"""

import argparse
import datetime
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu_check.packages import ROOT, environment, unpack
from benchmarks.gpu_check.plan import SECTIONS, limit_s
from benchmarks.gpu_check.processes import run_section
from benchmarks.gpu_check.records import FAILED, TIMED_OUT
from benchmarks.gpu_check.report import JSON, LOG, PAGE, PICTURE, Report

PACKAGES_VARIABLE = "GPU_CHECK_PACKAGES"
MARGIN_S = 40.0
"""Seconds of the budget that are kept for the end: stopping the last section, and the picture."""
PICTURE_S = 30.0
"""Least time for the picture: on a new machine matplotlib first makes a list of all fonts."""
MAX_LOG_BYTES = 2**22


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns 1 if a section failed or ran out of time."""
    began = time.monotonic()
    args = parse(arguments)
    signal.signal(signal.SIGTERM, _stop)
    args.out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(
        ["python", "-m", "benchmarks.gpu_check", *(sys.argv[1:] if arguments is None else arguments)]
    )
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    report = Report(command, started, args.device, bool(args.small), 60 * args.minutes)
    (args.out / LOG).write_bytes(b"")
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        try:
            run(report, args, Path(folder), began)
        finally:
            report.seconds = round(time.monotonic() - began, 1)
            report.write(args.out)
        shorten(args.out / LOG)
        left = report.budget_s - (time.monotonic() - began)
        draw(report, args.out, environment(Path(folder), Path(folder)), max(PICTURE_S, left))
    print((args.out / PAGE).read_text(encoding="utf-8"))
    return int(any(found.status in (FAILED, TIMED_OUT) for found in report.sections))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [section.name for section in SECTIONS]
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path("runs/gpu-check"),
        help="folder for report.json, report.md, report.png and log.txt",
    )
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add(
        "--small", action=argparse.BooleanOptionalAction, help="tiny shapes; by default where there is no GPU"
    )
    add("--minutes", type=float, default=8.5, help="time for everything")
    add("--sections", default=",".join(names), help=f"comma-separated, of {', '.join(names)}")
    add(
        "--packages",
        type=Path,
        action="append",
        help="folder with wheels and tar archives that are unpacked and come before what is installed, such as "
        f"onnxruntime-gpu; may be given several times; by default {PACKAGES_VARIABLE}, else .gpu",
    )
    args = parser.parse_args(arguments)
    args.chosen = args.sections.split(",")
    if unknown := sorted(set(args.chosen) - set(names)):
        parser.error(f"no such section: {', '.join(unknown)}; known are {', '.join(names)}")
    if args.minutes <= MARGIN_S / 60:
        parser.error(f"--minutes ({args.minutes:g}) must be over {MARGIN_S / 60:.2g}: the end takes as long")
    args.packages = args.packages or [Path(os.environ.get(PACKAGES_VARIABLE) or ROOT / ".gpu")]
    return args


def run(report: Report, args: argparse.Namespace, folder: Path, began: float) -> None:
    """Unpack what was brought, find the device, run the sections."""
    site = folder / "site"
    for packages in args.packages:
        names, errors = unpack(packages, site)
        report.notes += [f"Unpacked from {packages.name}: {', '.join(names)}."] if names else []
        report.notes += [f"Not unpacked: {error}." for error in errors]
    variables = environment(site, folder / "caches")
    report.device = args.device if args.device != "auto" else device(variables)
    report.small = report.device == "cpu" if args.small is None else args.small
    size = "small" if report.small else "full"
    for number, section in enumerate(SECTIONS):
        if section.name not in args.chosen:
            continue
        left = report.budget_s - MARGIN_S - (time.monotonic() - began)
        limit = limit_s(number, left, small=report.small)
        if limit < 1:
            report.notes.append(f"{section.title}: no time was left.")
            continue
        print(f"{section.title}: at most {limit:.0f} s", flush=True)
        found = run_section(section, report.device, size, folder, limit, variables, args.out / LOG)
        shutil.rmtree(folder / section.name, ignore_errors=True)
        report.sections.append(found)
        report.seconds = round(time.monotonic() - began, 1)
        report.write(args.out)  # what is there when this process is killed stays
        print(f"{section.title}: {found.status}, {found.seconds:.0f} s", flush=True)


def device(variables: dict[str, str]) -> str:
    """Return "cuda" where torch finds a GPU, asked in a process of its own."""
    code = "import torch; print(torch.cuda.is_available())"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "cpu"
    return "cuda" if asked.stdout.split()[-1:] == ["True"] else "cpu"


def shorten(log: Path) -> None:
    """Keep only the end of a log that has grown too long."""
    content = log.read_bytes()
    if len(content) > MAX_LOG_BYTES:
        log.write_bytes(content[-MAX_LOG_BYTES:])


def draw(report: Report, out: Path, variables: dict[str, str], limit_s: float) -> None:
    """Draw the picture in a process of its own; a failure is a note of the report."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.picture", str(out / JSON), str(out / PICTURE)]
    try:
        subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=limit_s, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", "") or ""
        report.notes.append(f"The picture was not drawn: {error} {str(said)[-500:]}")
        report.write(out)


def _stop(*_: Any) -> None:
    """End so that the running section is stopped and the report is written."""
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
