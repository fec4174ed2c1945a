"""A hub on this machine that speaks what huggingface_hub calls, over folders of checkpoints."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"
_INFO = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/revision/(?P<revision>.+)")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/tree/(?P<revision>[^?]+)")
_FILE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class Repo:
    """A model: a folder of files for each revision that it has had."""

    folder: Path
    gated: bool = False
    """Files need TOKEN; without it the hub answers 401."""
    tags: dict[str, Path] = field(default_factory=dict)

    def at(self, revision: str) -> Path | None:
        """Return the files of a branch, a tag or a commit."""
        folders = {"main": self.folder, **self.tags}
        return folders.get(revision) or {commit_of(f): f for f in folders.values()}.get(revision)


@dataclass
class Instead:
    """An answer that is not the hub's."""

    body: bytes | None = None
    """None leaves what the hub would send."""
    status: int = 200
    """A redirect, 300 to 399, leads to the same path again."""
    headers: dict[str, str] = field(default_factory=dict)
    """Values of headers that take the place of the hub's."""
    method: str = ""
    """The one method that is answered so; "" is any."""
    pause_s: float = 0.0
    """Pause before the answer."""


@dataclass
class LocalHub:
    """What the hub holds, what was asked of it, and how it misbehaves."""

    url: str
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """`METHOD path`, with ` [Range]` where a part was asked for."""
    cut: dict[str, int] = field(default_factory=dict)
    """File → number of downloads of it that end in the middle."""
    ranges: bool = True
    """Requests for a part of a file get the part; otherwise the whole."""
    pause_s: float = 0.0
    """Pause in the middle of each file of weights."""

    instead: dict[str, "Instead"] = field(default_factory=dict)
    """End of a path → what is answered in place of the truth."""

    def add(self, name: str, folder: Path) -> Repo:
        """Put a folder online as a model."""
        self.repos[name] = Repo(folder)
        return self.repos[name]

    def asked(self, part: str) -> list[str]:
        """Return the requests whose line contains a text."""
        return [line for line in self.requests if part in line]

    def downloaded(self) -> set[str]:
        """Return the files whose content was asked for."""
        found = (re.match(r"GET /[^/]+/[^/]+/resolve/[^/]+/(\S+)", line) for line in self.requests)
        return {match[1] for match in found if match}


def commit_of(folder: Path) -> str:
    """Return the commit of a folder's content: it changes with any file."""
    hashed = hashlib.sha1()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        hashed.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return hashed.hexdigest()


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run a hub until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = LocalHub(f"http://127.0.0.1:{server.server_port}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    instead = Instead()

    @property
    def hub(self) -> LocalHub:
        hub = self.server.hub  # type: ignore[attr-defined]
        assert isinstance(hub, LocalHub)
        return hub

    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword, self.instead.headers.get(keyword, value))

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}{' [Range]' if self.headers.get('Range') else ''}")
        found = (answer for end, answer in self.hub.instead.items() if path.endswith(end))
        self.instead = next(found, Instead())
        if self.instead.method not in ("", self.command):
            self.instead = Instead()
        time.sleep(self.instead.pause_s)
        if self.instead.status != 200:
            self._refuse(self.instead.status, "EntryNotFound" if self.instead.status == 404 else "")
            return
        for pattern, answer in ((_INFO, self._info), (_TREE, self._tree), (_FILE, self._file)):
            if match := pattern.fullmatch(path):
                if (repo := self.hub.repos.get(match["repo"])) is None:
                    # The hub does not tell what is private from what is not there.
                    self._refuse(401, "RepoNotFound")
                elif (folder := repo.at(match["revision"])) is None:
                    self._refuse(404, "RevisionNotFound")
                else:
                    answer(repo, folder, match)
                return
        if path == "/api/agent-harnesses":  # asked once a day and HF_HOME, for statistics
            self._json({"standardEnvVars": [], "harnesses": {}})
        else:
            self._refuse(404, "")

    def _info(self, repo: Repo, folder: Path, match: re.Match[str]) -> None:
        siblings = [{"rfilename": name} for name in _files(folder)]
        self._json({"id": match["repo"], "sha": commit_of(folder), "siblings": siblings})

    def _tree(self, repo: Repo, folder: Path, match: re.Match[str]) -> None:
        self._json([_entry(name, folder / name) for name in _files(folder)])

    def _file(self, repo: Repo, folder: Path, match: re.Match[str]) -> None:
        name, file = match["file"], folder / match["file"]
        if repo.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            return
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        content, start = self.instead.body, 0
        if content is None:
            content = file.read_bytes()
        if self.hub.ranges and (part := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")):
            start = int(part[1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("X-Repo-Commit", commit_of(folder))
        self.send_header("ETag", f'"{_etag(file)}"')
        self.end_headers()
        if self.command == "HEAD":
            return
        rest = content[start:]
        middle = len(rest) // 2
        self.wfile.write(rest[:middle])
        if self.hub.cut.get(name, 0):
            self.hub.cut[name] -= 1
            self.close_connection = True
            return
        if self.hub.pause_s and _is_large(name):
            self.wfile.flush()
            time.sleep(self.hub.pause_s)
        self.wfile.write(rest[middle:])

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode() if self.instead.body is None else self.instead.body
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if 300 <= status < 400:
            self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".h5", ".msgpack", ".onnx"))


def _etag(file: Path) -> str:
    content = file.read_bytes()
    if _is_large(file.name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(name: str, file: Path) -> dict[str, object]:
    size = file.stat().st_size
    blob = hashlib.sha1(b"blob %d\0" % size + file.read_bytes()).hexdigest()
    lfs = {"lfs": {"oid": _etag(file), "size": size, "pointerSize": 130}} if _is_large(name) else {}
    return {"type": "file", "path": name, "size": size, "oid": blob, **lfs}
