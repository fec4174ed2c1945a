"""Refuse a request by the size of its body while the engine's queue refuses its like, before it is read or tokenised.

Only the queue knows what waits, and it may be in another process. But whenever it refuses a request it says when that would
have been admitted. Until then a request of at least as many tokens, for the same model, in the same size class and with no
more time would be refused too. Its tokens are estimated from its bytes.

Where the queue refuses nothing, nothing is refused here. Reasons and measurements: docs/decisions/0013-overload.md.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter

from bert.errors import QueueFullError, TooLateError
from service.scheduling.fair_queue import ADMISSION_MARGIN

RATIO_WEIGHT = 0.1
"""Weight of a request in the running mean of tokens a byte."""
SPREADS = 1.0
"""Mean distances from the mean ratio that a request's estimate allows for, on both sides."""
LEAST_TRUST_S, MOST_TRUST_S = 1.0, 10.0
"""Seconds for which what the queue said is believed: it may empty sooner, as when clients leave."""
SHORT_WAIT_S = 0.1
"""Wait of a request that was hardly held up: nothing is refused in its line now."""
UNKNOWN_RATE = 1.0
"""Tokens a second of a queue that does not tell: so slow that it has room for next to nothing more."""
TOKENIZE_SHARE = 0.05
"""Largest share of the time in which requests may be tokenised only to find that the queue refuses them still."""


@dataclass(slots=True)
class TokenRatio:
    """Tokens of a model's requests by the bytes of their bodies: a running mean, and the mean distance from it."""

    mean: float
    spread: float

    def learn(self, ratio: float) -> None:
        """Learn from a request."""
        self.spread += RATIO_WEIGHT * (abs(ratio - self.mean) - self.spread)
        self.mean += RATIO_WEIGHT * (ratio - self.mean)

    def bounds(self, size: int) -> tuple[float, float]:
        """Return the fewest and the most tokens that a body of `size` bytes should have."""
        margin = SPREADS * self.spread
        return size * (self.mean - margin), size * (self.mean + margin)


@dataclass(slots=True)
class Refusal:
    """A refusal by the queue, and for how long it holds for requests of its size."""

    error: QueueFullError
    tokens: int
    """Tokens of the request."""
    room_at: float
    """Time at which it would be admitted; later whenever another request passes."""
    trusted_until: float
    """Time from which requests pass again, at the speed of the queue, though `room_at` has not come."""
    forgotten_at: float

    def covers(self, tokens: float) -> bool:
        """Tell whether a request of so many tokens waits in the same line."""
        least, most = self.error.sizes
        return least < tokens <= most

    def wait_s(self, tokens: float, has_s: float, now: float) -> float:
        """Return the seconds until the queue has room for so many tokens, with `has_s` until their deadline."""
        fewer, rate = max(0.0, self.tokens - tokens), self.error.tokens_per_s or UNKNOWN_RATE
        wait_s = self.room_at - now - fewer / rate
        if isinstance(self.error, TooLateError):
            wait_s -= ADMISSION_MARGIN * max(0.0, has_s - self.error.has_s)
        return wait_s

    def again(self, wait_s: float, has_s: float) -> QueueFullError:
        """Return the error of a request that would have to wait for so long."""
        error, known = self.error, (self.error.queued_tokens, self.error.max_queue_tokens, wait_s)
        if isinstance(error, TooLateError):
            return TooLateError(*known, wait_s + ADMISSION_MARGIN * has_s, has_s)
        return QueueFullError(*known)


class EarlyRefusal:
    """What the queue refused lately, by model and size class, and the models' tokens a byte."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing, and so refuse nothing."""
        self._clock = clock
        self._ratios: dict[str, TokenRatio] = {}
        self._refusals: dict[tuple[str, str], list[Refusal]] = {}
        """By model and API key: what one key has waiting says nothing of another's."""

    def learn(self, model: str, size: int, tokens: int) -> None:
        """Learn from a request whose body had `size` bytes; no-op for 0, a request without a body."""
        if not size:
            return
        ratio = tokens / size
        if model in self._ratios:
            self._ratios[model].learn(ratio)
        else:
            self._ratios[model] = TokenRatio(ratio, ratio / 2)

    def note(self, model: str, tokens: int, tokenize_s: float, error: QueueFullError, key: str = "") -> None:
        """Note that the queue refused a request, which took `tokenize_s` to tokenise."""
        now = self._clock()
        trust_s = min(MOST_TRUST_S, max(LEAST_TRUST_S, tokenize_s / TOKENIZE_SHARE))
        refusal = Refusal(error, tokens, now + error.retry_after_s, now + trust_s, now + 2 * trust_s)
        others = [each for each in self._current((model, key), now) if not each.covers(tokens)]
        self._refusals[model, key] = [*others, refusal]

    def forget(self, model: str, tokens: int, queue_s: float, key: str = "") -> None:
        """Take in that a request waited for `queue_s`: if that was hardly at all, the queue has room for the like again."""
        line = model, key
        if queue_s < SHORT_WAIT_S and line in self._refusals:
            others = [each for each in self._refusals.pop(line) if not each.covers(tokens)]
            if others:
                self._refusals[line] = others

    def check(self, models: Iterable[str], size: int, deadline: float, key: str = "") -> None:
        """Raise QueueFullError if the queue should refuse a body of `size` bytes for whichever of the models it is.

        `deadline` is on the clock.
        """
        if not self._refusals:
            return
        now = self._clock()
        has_s = deadline - now
        found = [self._found((model, key), size, has_s, now) for model in models]
        waits = [(wait_s, refusal) for wait_s, refusal, _ in filter(None, found) if wait_s > 0]
        if found and len(waits) == len(found):
            wait_s, refusal = min(waits, key=itemgetter(0))
            raise refusal.again(wait_s, has_s)

    def enter(self, model: str, size: int, deadline: float, key: str = "") -> None:
        """As `check`; what passes is about to be queued, and others like it wait the longer."""
        if not self._refusals:
            return
        self.check([model], size, deadline, key)
        now = self._clock()
        if (found := self._found((model, key), size, deadline - now, now)) is not None:
            _, refusal, tokens = found
            refusal.room_at += tokens / (refusal.error.tokens_per_s or UNKNOWN_RATE)

    def _found(
        self, line: tuple[str, str], size: int, has_s: float, now: float
    ) -> tuple[float, Refusal, float] | None:
        """Return what is known of a body of `size` bytes for a model and key, None if nothing that would refuse it.

        The seconds until it is admitted, the refusal that tells so, and the fewest tokens that it should have.
        """
        ratio = self._ratios.get(line[0])
        if ratio is None or not (refusals := self._current(line, now)):
            return None
        low, high = ratio.bounds(size)
        # If it may be in either of two size classes, both must refuse it.
        ends = [next((each for each in refusals if each.covers(tokens)), None) for tokens in (low, high)]
        waits = [(each.wait_s(low, has_s, now), each, low) for each in ends if each is not None]
        return min(waits, key=itemgetter(0)) if len(waits) == len(ends) else None

    def _current(self, line: tuple[str, str], now: float) -> list[Refusal]:
        """Return the refusals of a model and key that still tell something."""
        if line not in self._refusals:
            return []
        current = [each for each in self._refusals.pop(line) if now < each.forgotten_at]
        for each in current:
            if now >= each.trusted_until:
                each.room_at, each.trusted_until = min(each.room_at, now), math.inf
        if current:
            self._refusals[line] = current
        return current
