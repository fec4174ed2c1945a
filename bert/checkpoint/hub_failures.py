"""Failures of a download from the hub, each told with its cause and what to do."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bert.checkpoint.hub_answers import endpoint, no_hub
from bert.errors import BertError, CheckpointError
from bert.names import HubName

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
