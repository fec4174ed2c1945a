"""More connections than the limit of open files allows: bounded at start, so that probes still get an answer."""

import resource
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.cli import OTHER_FILES
from service.http.protocol import RESERVED_CONNECTIONS
from tests.support.fleet import Fleet, fleet, soon
from tests.support.process import COMMAND, ROOT

WANTED = 300
ROOM = 40
"""Connections for which the lower limit has room."""


def limited(soft: int, hard: int) -> Sequence[str]:
    """Return the command of a service whose limit of open files is set before."""
    return ["bash", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "bash", *COMMAND]


def options(bundles: Path) -> list[str]:
    names = ["--bundles", str(bundles / "names"), "--max-connections", str(WANTED)]
    return [*names, "--log-level", "warning", "--keep-alive-s", "60"]


@pytest.mark.parametrize("frontends", [0, 1])
def test_probes_are_answered_when_more_connections_come_than_there_are_files_for(
    bundles: Path, frontends: int
) -> None:
    command = limited(OTHER_FILES + ROOM, OTHER_FILES + ROOM)
    with fleet(*options(bundles), frontends=frontends, command=command) as few:
        soon(lambda: few.readiness()[0] == 200)
        with ExitStack() as stack:
            for _ in range(ROOM):
                stack.enter_context(socket.create_connection(few.connect_to(), timeout=60))
            soon(lambda: few.metric("bert_open_connections") >= ROOM)
            reply = few.post("/ner", {"text": "angela"})
            assert (reply.status, reply.json["type"]) == (503, "urn:bert-serve:too-many-connections")
            for _ in range(2 * RESERVED_CONNECTIONS):
                stack.enter_context(socket.create_connection(few.connect_to(), timeout=60))
            soon(lambda: few.get("/health/live").status == 200)  # those are closed soon
        few.stop(signal.SIGTERM)
        assert few.process.popen.wait(120) == 0
        said = few.process.error()
    assert f"each process serves {ROOM} connections and not {WANTED} (max_connections)" in said


@pytest.mark.parametrize("files", [64, OTHER_FILES])
def test_where_there_is_room_for_no_connection_the_start_is_refused(bundles: Path, files: int) -> None:
    command = [*limited(files, files), *options(bundles)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"bert-serve: {files} open files are allowed (ulimit -n), and a process needs {OTHER_FILES} besides its "
        f"connections: allow {WANTED + OTHER_FILES}\n"
    )


def test_a_limit_that_may_be_raised_is_raised_as_far_as_needed(bundles: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with fleet(*options(bundles), frontends=1, command=limited(200, min(hard, 1000))) as many:
        soon(lambda: many.readiness()[0] == 200)
        for pid in (many.supervisor, *many.children()):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == WANTED + OTHER_FILES
        assert served(many) == WANTED


def served(many: Fleet) -> int:
    """Return how many connections TEI's page of the service says that it serves."""
    return int(many.get("/tei/names/info").json["max_concurrent_requests"])
