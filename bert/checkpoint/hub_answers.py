"""Answers of a hub, checked before huggingface_hub takes them for file names and numbers, and failures told with what to do.

A mirror, a proxy or the sign-in page of a network may answer in the hub's place.
"""

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bert.errors import BertError, CheckpointError
from bert.names import HubName

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


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explained(name: HubName) -> Iterator[None]:
    """Turn every failure of a download into a CheckpointError that says what to do."""
    try:
        yield
    except BertError:
        raise
    except Exception as error:
        # huggingface_hub and its HTTP client have errors with no base of their own.
        package = type(error).__module__.partition(".")[0]
        is_theirs = package in ("huggingface_hub", "httpx2", "httpcore2")
        if not is_theirs and not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        raise CheckpointError(_reason(name, error)) from error


def _reason(name: HubName, error: Exception) -> str:
    from httpx2 import TooManyRedirects
    from huggingface_hub import errors

    explanations: list[tuple[type[Exception], Callable[[HubName, Any], str]]] = [
        (errors.GatedRepoError, _gated),
        (errors.RepositoryNotFoundError, _unknown),
        (errors.RevisionNotFoundError, _no_revision),
        (errors.RemoteEntryNotFoundError, _no_file),
        (errors.RevisionResolutionError, _unreachable),
        (errors.LocalEntryNotFoundError, _unreachable),
        (json.JSONDecodeError, _no_hub),
        (TooManyRedirects, _no_hub),
        (errors.CachedRepoTreeNotFoundError, _unreachable),
        (
            errors.HFValidationError,
            lambda name, error: f"{name} is not a name that the hub could have: {error}",
        ),
        (errors.HfHubHTTPError, _status),
    ]
    for kind, explain in explanations:
        if isinstance(error, kind):
            return explain(name, error)
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        return (
            f"{name} cannot be downloaded: {error.strerror}; make room, or set HF_HOME to a folder on another disk, and "
            "run it again (whole files are kept)"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} cannot be downloaded: {error}"
    return (
        f"the download of {name} was cut off ({_short(error)}): run it again; whole files are kept, and the one that was "
        "cut off begins anew"
    )


def _gated(name: HubName, error: Any) -> str:
    return (
        f"{name} is gated: accept its terms at {endpoint()}/{name.repo}, and set HF_TOKEN to a token of the account "
        f"that did{_token_state()}"
    )


def _unknown(name: HubName, error: Any) -> str:
    return (
        f"there is no folder {name} here, and no model {name.repo} at {endpoint()}: correct the name; for a private model "
        f"set HF_TOKEN to a token of an account that may read it{_token_state()}"
    )


def _no_revision(name: HubName, error: Any) -> str:
    return f"{name.repo} has no revision {name.revision!r}: name a commit, a tag or a branch that {endpoint()} lists"


def _unreachable(name: HubName, error: Any) -> str:
    from huggingface_hub import errors
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    cause = error.__cause__ or error
    if isinstance(cause, errors.FileMetadataError):
        return _no_hub(name, cause)
    if isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code < 500:
        return _status(name, cause)
    where = f"{name} is not (or not whole) in the cache {HF_HUB_CACHE}"
    if HF_HUB_OFFLINE:
        return f"{where}, and HF_HUB_OFFLINE is set: download it once without that, or name a folder that is here"
    return f"{where}, and {endpoint()} does not answer ({_short(cause)}): check the network, a proxy, HF_ENDPOINT"


def _no_file(name: HubName, error: Any) -> str:
    path = urlsplit(str(error.response.url)).path
    return f"{endpoint()} lists a file of {name} that it does not have ({path}): a mirror may not be whole"


def _no_hub(name: HubName, error: Any) -> str:
    return no_hub(f"the answer of a hub ({_short(error)})")


def _status(name: HubName, error: Any) -> str:
    status = error.response.status_code
    if status in (401, 403):
        advice = (
            f"set HF_TOKEN to a token of an account that may read it{_token_state()}, or check HF_ENDPOINT"
        )
    elif status == 429 or status >= 500:
        advice = "try again later"
    else:
        advice = "check HF_ENDPOINT"
    return f"{endpoint()} refuses {name} ({_short(error)}): {advice}"


def _token_state() -> str:
    from huggingface_hub import get_token

    return " (the token in use was refused)" if get_token() else " (none is set)"


def _short(error: BaseException) -> str:
    """Return an error's first line, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
