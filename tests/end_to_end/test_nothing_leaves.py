"""Nothing leaves the machine: the system calls of each program, from start to end, on files of this machine.

A program may connect to loopback and Unix sockets, and may write where it is told to and among temporary files.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

import bert
from tests.support.endpoints import TASK_ENDPOINTS
from tests.support.finetuning import SAMPLES
from tests.support.live import Client
from tests.support.process import COMMAND, ROOT, address, children, started
from tests.support.tiny import write_tiny_bundles

STRACE = ("strace", "-f", "-qq", "-e", "trace=connect,openat", "-o")
DNS_PORT = 53
MODULES = {
    "bert-export": "model_export.cli",
    "bert-finetune": "training.commands.finetune",
    "bert-predict": "service.bulk.command",
}
PAGES = ("/", "/status", "/docs", "/models", "/metrics", "/openapi.json", "/health/live")


def is_traceable() -> bool:
    """Tell whether strace is installed and may trace; a container may forbid it."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run([*STRACE, os.devnull, "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_traceable(), reason="needs strace (Debian, Ubuntu: apt-get install strace)"),
]


@dataclass(frozen=True)
class Traced:
    """A folder with a home directory of its own, and the traces of programs that ran with it."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of a user who has set nothing; compiled Python files go nowhere."""
        return {
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ["PATH"],
        }

    def under_strace(self, name: str, command: Sequence[str]) -> list[str]:
        return [*STRACE, str(self.folder / f"{name}.strace"), *command]

    def run(self, name: str, *arguments: str) -> None:
        """Run one of MODULES to its end."""
        command = self.under_strace(name, [sys.executable, "-m", MODULES[name], *arguments])
        done = subprocess.run(command, env=self.variables, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def check(self, name: str) -> None:
        """Check a program's connections, and the files that it opened to write."""
        lines = (self.folder / f"{name}.strace").read_text(errors="replace").splitlines()
        assert sum("openat(" in line for line in lines) > 100, "strace saw no program"
        assert [line for line in lines if "connect(" in line and leaves(line)] == []
        written = [path for line in lines if (path := written_file(line))]
        assert [path for path in written if not self.is_allowed(path)] == []
        assert list(self.home.iterdir()) == []

    def is_allowed(self, path: str) -> bool:
        """Tell whether a program may write there: its own output, temporary files, devices."""
        inside = path.startswith(f"{self.folder}/") and not path.startswith(f"{self.home}/")
        return inside or path.startswith(("/dev/", "/proc/"))


def leaves(line: str) -> bool:
    """Tell whether a `connect` is to another machine, or asks a name server, which may be on this one."""
    if found := re.search(r'htons\((\d+)\).*?(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"', line):
        return int(found[1]) == DNS_PORT or not ip_address(found[2]).is_loopback
    return not re.search(r"sa_family=AF_(UNIX|UNSPEC)", line)


def written_file(line: str) -> str | None:
    """Return the path of a file that an `openat` opened to write."""
    found = re.search(r'openat\([^,]+, "([^"]*)", ([A-Z_|]+)', line)
    if found is None or not re.search("O_WRONLY|O_RDWR|O_CREAT", found[2]) or "= -1 " in line:
        return None
    return found[1]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("traced")
    for name in ("home", "tmp", "bundles"):
        (folder / name).mkdir()
    return Traced(folder)


@pytest.fixture(scope="module")
def checkpoint(traced: Traced, tiny_base: Path) -> Iterator[Path]:
    """A checkpoint that bert-finetune trained under strace."""
    files = [f"--{part}={SAMPLES / f'sentiment-{part}.csv'}" for part in ("train", "dev")]
    run = traced.folder / "run"
    given = [
        "--task=classification",
        f"--base={tiny_base}",
        *files,
        f"--output-dir={run}",
        "--max-steps=2",
        "--max-tokens=32",
    ]
    traced.run("bert-finetune", *given)
    yield run / "best"


@pytest.fixture(scope="module")
def bundle(traced: Traced, checkpoint: Path) -> Path:
    """A bundle that bert-export wrote under strace."""
    out = traced.folder / "bundle"
    traced.run("bert-export", f"--checkpoint={checkpoint}", f"--out={out}")
    return out


def test_training_sends_nothing_and_leaves_home_alone(traced: Traced, checkpoint: Path) -> None:
    traced.check("bert-finetune")


def test_an_export_sends_nothing_and_leaves_home_alone(traced: Traced, bundle: Path) -> None:
    traced.check("bert-export")


def test_predicting_a_file_sends_nothing_and_leaves_home_alone(traced: Traced, bundle: Path) -> None:
    out = traced.folder / "predicted.jsonl"
    rows = SAMPLES / "sentiment-dev.csv"
    traced.run("bert-predict", str(bundle), str(rows), f"--out={out}", "--prefix=predicted_")
    traced.check("bert-predict")


def test_the_service_sends_nothing_and_leaves_home_alone(traced: Traced) -> None:
    write_tiny_bundles(traced.folder / "bundles")
    given = ["--bundles", str(traced.folder / "bundles"), "--default-models", "classification=mood"]
    command = traced.under_strace("bert-serve", COMMAND)
    with started(*given, command=command, **traced.variables) as strace:
        try:
            client = Client(address(strace.until("Ctrl-C")))
            for endpoint in TASK_ENDPOINTS:
                assert client.post(endpoint.path, endpoint.sent).status == 200
            for page in PAGES:
                assert client.get(page).status == 200
        finally:
            (service,) = children(strace.popen.pid)
            os.kill(service, signal.SIGTERM)
            assert strace.popen.wait(120) == 0
    traced.check("bert-serve")


def test_a_variable_that_is_set_stays_as_it_is() -> None:
    code = f"import bert, os; print(*(os.environ[name] for name in {sorted(bert.NO_REPORTS)}))"
    variables = {"ORT_DISABLE_TELEMETRY": "0", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=ROOT, capture_output=True, text=True
    )
    chosen = {**bert.NO_REPORTS, "ORT_DISABLE_TELEMETRY": "0"}
    assert done.stdout.split() == [chosen[name] for name in sorted(chosen)], done.stderr
