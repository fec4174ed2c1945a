"""Finds the named key of a request; keys from a file are read again when it changes."""

import asyncio
import hmac
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from starlette.types import Scope

from bert.errors import ConfigError, NotReadyError
from service.access.grants import Grant
from service.access.keys import Key, digest_of, keys_of, warn_of_unknown
from service.http.problems import ProblemError
from service.http.request_body import header
from service.logs import LOGGER
from service.metrics import Metrics
from service.settings import ServeSettings
from service.system import file_stamp

LOOK_EVERY_S = 1.0
"""Seconds from one look at the file of keys to the next."""
WRONG_KEYS, WRONG_WITHIN_S = 10, 60.0
"""Wrong keys that an address may send within so many seconds."""
WRONG_PAUSE_S = 1.0
"""Seconds that the answer to a further one waits, so that a connection cannot try many."""
MAX_ADDRESSES = 4096
"""Addresses whose wrong keys are remembered, those of the latest."""


class WrongKeys:
    """Counts the wrong keys that each address sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Remember none yet."""
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, address: str) -> float:
        """Count a wrong key; return the seconds until the address may send one again, 0 if it may have sent this one."""
        now, times = self._clock(), self._times.setdefault(address, deque())
        self._times.move_to_end(address)
        if len(self._times) > MAX_ADDRESSES:
            self._times.popitem(last=False)
        while times and times[0] <= now - WRONG_WITHIN_S:
            times.popleft()
        if len(times) >= WRONG_KEYS:
            return times[0] + WRONG_WITHIN_S - now
        times.append(now)
        return 0.0


class Authorisation:
    """The keys that are in force in this process."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        known_models: Callable[[], Collection[str]],
        places: Path | None,
    ) -> None:
        """Read the keys. If their file is wrong by now, log it: all requests are refused until it is mended.

        In the file `places` several processes count the requests in progress.
        """
        self.needs_key = settings.needs_key
        self._settings, self._metrics, self._known_models = settings, metrics, known_models
        self._file, self._look_at = settings.api_keys_file, 0.0
        self._seen = file_stamp(self._file)
        self._grants: list[tuple[Key, Grant]] = []
        self._places = os.open(places, os.O_RDWR | os.O_CREAT, 0o600) if places is not None else None
        self._wrong = WrongKeys(time.monotonic)
        self._read()

    async def find(self, scope: Scope) -> Grant | None:
        """Return the grant of a request's key, None for a missing or wrong one. Raises the 429 of too many wrong ones."""
        if self._file is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            if (seen := file_stamp(self._file)) != self._seen:
                self._seen = seen
                await asyncio.to_thread(self._read)
        sent, client = sent_key(scope), scope.get("client")
        found = self._compared(sent)
        if found is None and sent and (wait_s := self._wrong.count(client[0][:64] if client else "")):
            await asyncio.sleep(WRONG_PAUSE_S)
            seconds = math.ceil(wait_s)
            detail = f"this address has sent {WRONG_KEYS} wrong keys in {WRONG_WITHIN_S:.0f} s; try again in {seconds} s"
            headers = {"Retry-After": str(seconds)}
            raise ProblemError(429, "too-many-wrong-keys", detail, headers=headers, reason="wrong_keys")
        return found

    async def grant(self, scope: Scope) -> Grant:
        """Return the grant of a request's key. Raises what `find` does, and the 401 of a missing or wrong key."""
        if (found := await self.find(scope)) is not None:
            return found
        detail = "send the key as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
        headers = {"WWW-Authenticate": "Bearer"}
        raise ProblemError(401, "unauthorized", detail, headers=headers, reason="unauthorized")

    def _compared(self, sent: str) -> Grant | None:
        """Compare a key with all; it takes the same time for any."""
        digest, found = digest_of(sent), None
        for key, grant in self._grants:
            if hmac.compare_digest(digest, key.digest):
                found = grant
        return found

    def _read(self) -> None:
        """Take the keys of the file; those whose rules are as before keep what they have used."""
        before = {key.name: (key, grant) for key, grant in self._grants}
        try:
            keys = keys_of(self._settings)
        except ConfigError as error:
            LOGGER.error("the keys in force stay %s: %s", ", ".join(before) or "none", error)
            self._metrics.keys_file_error.set(1)
            return
        processes, grants = self._settings.frontends or 1, list[tuple[Key, Grant]]()
        for key in keys:
            same = before.get(key.name)
            new = key, Grant(key.name, key.rules, processes, file=self._places)
            grants.append(same if same is not None and same[0] == key else new)
        self._grants = grants
        self._metrics.keys_file_error.set(0)
        if before:
            LOGGER.info("the keys were read again: %s", ", ".join(key.name for key in keys))
            with suppress(NotReadyError):  # no model is loaded yet
                warn_of_unknown(keys, self._known_models())


def sent_key(scope: Scope) -> str:
    """Return the key that a request sends, "" if none."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
