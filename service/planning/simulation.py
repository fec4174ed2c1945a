"""A replica under random requests: the service's own queue and measured times, without a service."""

import heapq
import itertools
import math
import random
import sys
from collections.abc import Sequence
from typing import NamedTuple

from service.scheduling.fair_queue import Batch, FairQueue, Job, Throughput

TEXTS, LEAST_REQUESTS = 10_000, 1_000
"""Texts of a simulation, and its fewest requests. The first tenth of the answers does not count: nobody was there before."""


class Replica(NamedTuple):
    """Tokens of the texts of its requests, their mean CPU seconds beside the engine and in full batches, and its batches."""

    requests: Sequence[Sequence[int]]
    http_s: float
    engine_s: float
    throughput: Throughput
    large_budget: int


class Load(NamedTuple):
    """How a replica answers so many requests: its cores are so busy, and so many tokens wait for a batch, on average."""

    busy: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    queue_tokens: float


def simulate(replica: Replica, requests_per_s: float) -> Load:
    """Let requests come independently of one another. There is a core for each slot, and all that runs shares them equally.

    The clock `work_s` counts the CPU seconds that each running job or batch gets: its end is known when it begins.
    """
    model, chance, number = replica.throughput, random.Random(0), itertools.count()
    queue = FairQueue(sys.maxsize, {"": model.budget}, {"": model}, model.slots, {"": replica.large_budget})
    running, arrived, left = list[tuple[float, int, Job | Batch]](), dict[Job, float](), dict[Job, int]()
    now = work_s = next_s = used_s = waited = 0.0
    times_ms, slots, long_running = list[float](), model.slots, 0
    count = max(LEAST_REQUESTS, TEXTS * len(replica.requests) // sum(map(len, replica.requests)))
    while len(times_ms) < count:
        cores = min(model.slots, len(running))
        speed = cores / len(running) if running else 1.0
        ends_in_s = (running[0][0] - work_s) / speed if running else math.inf
        step_s = min(next_s - now, ends_in_s)
        now, work_s = now + step_s, work_s + step_s * speed
        used_s, waited = used_s + step_s * cores, waited + step_s * queue.tokens
        if step_s < ends_in_s:
            job = Job("", chance.choice(replica.requests))
            arrived[job], left[job] = now, len(job.sizes)
            heapq.heappush(running, (work_s + replica.http_s, next(number), job))
            next_s += chance.expovariate(requests_per_s)
            continue
        ended = heapq.heappop(running)[2]
        if isinstance(ended, Job):
            queue.admit(ended)
        else:
            slots, long_running = slots + 1, long_running - ended.is_long
            for item in ended.items:
                left[item.job] -= item.texts
                if not left[item.job]:
                    times_ms.append(1000 * (now - arrived[item.job]))
        while slots and (batch := queue.next_batch(now, slots, long_running)):
            slots, long_running = slots - 1, long_running + batch.is_long
            heapq.heappush(running, (work_s + queue.seconds(batch), next(number), batch))
    counted = sorted(times_ms[count // 10 :])
    p50_ms, p99_ms = (counted[int(share * len(counted))] for share in (0.5, 0.99))
    return Load(used_s / now / model.slots, requests_per_s, p50_ms, p99_ms, waited / now)
