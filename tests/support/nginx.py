"""A real nginx with deploy/nginx/nginx.conf."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.live import Client, eventually
from tests.support.process import ROOT

CONF = ROOT / "deploy/nginx/nginx.conf"
NGINX = shutil.which("nginx")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def proxy(folder: Path, *upstream: int, **changes: tuple[str, str]) -> Iterator[Client]:
    """Run nginx with the file before services at these ports, on a free port, with some directives changed."""
    port = free_port()
    conf = CONF.read_text(encoding="utf-8")
    swaps = {
        "listen 80;": f"listen 127.0.0.1:{port};",
        "server 127.0.0.1:8000 max_fails=0;": " ".join(
            f"server 127.0.0.1:{each} max_fails=0;" for each in upstream
        ),
        "/var/log/nginx/access.log": f"{folder}/access.log",
        **{f"{name} {old}": f"{name} {new}" for name, (old, new) in changes.items()},
    }
    for old, new in swaps.items():
        assert old in conf, old
        conf = conf.replace(old, new)
    bodies = "".join(
        f" {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(conf.replace("http {", f"http {{{bodies}", 1), encoding="utf-8")
    user = "user root;" if os.geteuid() == 0 else ""  # its workers write to the folder
    own = f"daemon off; {user} pid {folder}/nginx.pid; error_log {folder}/error.log;"
    assert NGINX is not None
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-e", f"{folder}/error.log", "-c", "nginx.conf", "-g", own]
    )
    client = Client(f"http://127.0.0.1:{port}")
    try:
        eventually(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield client
    finally:
        process.terminate()
        process.wait(120)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
