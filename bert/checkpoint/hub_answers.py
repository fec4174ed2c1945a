"""Checks of a hub's answers, before huggingface_hub takes them for file names and numbers.

A mirror, a proxy or the sign-in page of a network may answer in the hub's place.
"""

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from bert.errors import CheckpointError

if TYPE_CHECKING:
    from httpx2 import Request, Response

ANSWER_S = 10.0
"""Seconds in which a hub has to answer a request, where huggingface_hub sets no limit of its own."""
_API = re.compile(r"/api/models/[^/]+(?:/[^/]+)?/(revision|tree)/")
_FILE_AT = re.compile(r"/resolve/([0-9a-f]{40})/")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_NAME = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]{0,127}")


@cache
def check_answers() -> None:
    """Have every request of huggingface_hub end in time, and every answer checked."""
    from httpx2 import Client
    from huggingface_hub import get_session, set_client_factory

    own = get_session().event_hooks["request"]  # of the library: they end every request where it is offline
    hooks: dict[str, list[Any]] = {"request": [*own, _limit], "response": [_check]}
    set_client_factory(lambda: Client(event_hooks=hooks, follow_redirects=True))


def endpoint() -> str:
    """Return the hub's address."""
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT


def no_hub(what: str) -> str:
    """Return the sentence about an answer that no hub would give."""
    return (
        f"the hub at {endpoint()} answered with something that is not {what}: check HF_ENDPOINT, and whether a proxy or "
        "the sign-in page of a network answers in its place"
    )


def _limit(request: "Request") -> None:
    # Some calls ask for no limit, which a default of the client would not change.
    limits = request.extensions.get("timeout", {})
    parts = {part: limits.get(part) or ANSWER_S for part in ("connect", "read", "write", "pool")}
    request.extensions = {**request.extensions, "timeout": parts}


def _check(response: "Response") -> None:
    """Raise CheckpointError for an answer that no hub would give."""
    request = response.request
    if response.is_error:
        return
    if request.method == "HEAD":
        _check_names(request.url.path, response)
    elif response.is_success and (found := _API.search(request.url.path)):
        response.read()
        try:
            content = json.loads(response.content)
        except (ValueError, RecursionError):
            content = None
        is_tree = found[1] == "tree"
        if not (_is_tree(content) if is_tree else _is_revision(content)):
            raise CheckpointError(no_hub("a list of files" if is_tree else "a description of a model"))


def _check_names(path: str, response: "Response") -> None:
    """Check the headers that name files and folders of the cache."""
    etag = response.headers.get("X-Linked-Etag") or response.headers.get("ETag")
    commit, asked = response.headers.get("X-Repo-Commit"), _FILE_AT.search(path)
    if etag is not None and not _FILE_NAME.fullmatch(etag.removeprefix("W/").strip('"')):
        raise CheckpointError(no_hub(f"the ETag of a file ({etag[:80]!r})"))
    if commit is not None and not (commit == asked[1] if asked else _COMMIT.fullmatch(commit)):
        raise CheckpointError(no_hub(f"a file of the commit that was asked for ({commit[:80]!r})"))


def _is_revision(content: Any) -> bool:
    return isinstance(content, dict) and _is_text(_COMMIT, content.get("sha"))


def _is_tree(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(entry, dict) and _is_entry(entry) for entry in content
    )


def _is_entry(entry: dict[str, Any]) -> bool:
    if not isinstance(entry.get("path"), str) or not _is_text(_FILE_NAME, entry.get("oid")):
        return False
    lfs = entry.get("lfs")
    if lfs is not None and not (isinstance(lfs, dict) and "pointerSize" in lfs and _is_content(lfs)):
        return False
    return "type" in entry and (entry["type"] != "file" or _is_content(entry))


def _is_content(values: dict[str, Any]) -> bool:
    size = values.get("size")
    return type(size) is int and size >= 0 and _is_text(_FILE_NAME, values.get("oid"))


def _is_text(form: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None
