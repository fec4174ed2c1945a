"""One section in a process of its own, ended with all that it started when its time is over."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_check.child import FINDINGS
from benchmarks.gpu_check.packages import ROOT
from benchmarks.gpu_check.plan import Section
from benchmarks.gpu_check.records import FAILED, OK, SKIPPED, TIMED_OUT, Findings, read_into
from benchmarks.serve.load.process_tree import kill, tree

CHILD = [sys.executable, "-m", "benchmarks.gpu_check.child"]
LAST_CHARS = 1500
CLEANING_S = 5.0
"""Seconds that a section has to stop its servers after its time is over."""


def run_section(
    section: Section,
    device: str,
    size: str,
    folder: Path,
    limit_s: float,
    environment: Mapping[str, str],
    log: Path,
) -> Findings:
    """Run a section for at most `limit_s` seconds; return what it found. Its output goes to the end of `log`."""
    findings, place, began = Findings(section.name, section.title), folder / section.name, time.monotonic()
    place.mkdir(parents=True)
    command = [*CHILD, section.name, device, size, str(place), f"{limit_s:.1f}"]
    with log.open("ab") as output:
        output.write(f"\n==== {section.title}, at most {limit_s:.0f} s\n".encode())
        output.flush()
        before = output.tell()
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop(child)
    read_into(findings, place / FINDINGS)
    findings.seconds = round(time.monotonic() - began, 1)
    said = log.read_bytes()[before:].decode(errors="replace")[-LAST_CHARS:].strip()
    if code is None:
        findings.status, findings.error = TIMED_OUT, f"stopped after {limit_s:.0f} s; its last output: {said}"
    elif code:
        findings.status, findings.error = FAILED, f"ended with {code}: {said}"
    elif findings.errors:
        findings.status = FAILED
    elif findings.skipped and not findings.tables:
        findings.status = SKIPPED
    else:
        findings.status = OK
    return findings


def stop(child: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started: politely first, so that a server of the section ends in its own way."""
    if child.poll() is None:
        started = [pid for pid in tree(child.pid) if pid != child.pid]
        child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(CLEANING_S)
        for pid in started:  # servers lead sessions of their own and outlive what started them
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    with suppress(
        RuntimeError, subprocess.TimeoutExpired
    ):  # a process can hang in a driver, whatever it is sent
        kill(child.pid)
        child.wait(CLEANING_S)
