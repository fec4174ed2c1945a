"""Measure a model on this machine, and print how many replicas of it a load needs."""

import json
import math
from itertools import cycle, islice

from bert.errors import ConfigError
from bert.manifest import CUDA
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader, opened
from service.engine.measure import measure
from service.engine.slot_layout import slot_layout
from service.planning.settings import PlanSettings
from service.planning.simulation import Replica, simulate
from service.planning.trial import CONNECTIONS, Serve, try_requests
from service.scheduling.fair_queue import Throughput
from service.system import usable_cores
from service.tasks.table import BY_ROW
from service.workers.scheduled_models import ScheduledModels

TRIAL_S, LEAST_S = 5.0, 0.001
"""Expected seconds of the trial, and those of a request beside the engine before they are measured."""
PERCENTS = range(5, 100, 5)
"""Loads that are simulated, of the most that a replica answers."""


def print_plan(settings: PlanSettings, serve: Serve, *, as_json: bool) -> None:
    """Print the plan. Raises ConfigError if no number of replicas is enough, and what a start raises."""
    replica, wanted = measured(settings, serve), settings.requests_per_s
    cores, request_s = replica.throughput.slots, replica.http_s + replica.engine_s
    loads = [simulate(replica, percent / 100 * cores / request_s) for percent in PERCENTS]
    best = max((load for load in loads if load.p99_ms <= settings.p99_ms), default=None)
    if best is None:
        raise ConfigError(
            f"p99_ms ({settings.p99_ms:g}) must be at least {loads[0].p99_ms:.1f}, what a replica takes that is "
            f"{PERCENTS[0]}% busy: more of them make no request faster; shorter texts, 8 bits or a smaller model do"
        )
    replicas = math.ceil(wanted / best.requests_per_s)
    each = simulate(replica, wanted / replicas)
    helm = {"cpus": cores, "scaling.min": replicas, "scaling.cpu": round(100 * best.busy)}
    helm["scaling.queueTokens"] = math.ceil(best.queue_tokens)
    engine_ms, http_ms = 1000 * replica.engine_s, 1000 * replica.http_s
    if as_json:
        found = {"engine_ms": engine_ms, "http_ms": http_ms, "replicas": replicas, "helm": helm}
        print(json.dumps({**found, "each": each._asdict(), "loads": [load._asdict() for load in loads]}))
        return
    print(f"A request takes {engine_ms:.2f} ms of a core in full batches, and {http_ms:.2f} ms beside them\n")
    print(" busy  requests/s  p50 ms  p99 ms  waiting tokens  replicas")
    for load in loads:
        needed = math.ceil(wanted / load.requests_per_s)
        print("{:5.0%} {:11.1f} {:7.1f} {:7.1f} {:15.0f} {:9}".format(*load, needed))
    print(
        f"\n{wanted:g} requests/s, 99 of 100 within {settings.p99_ms:g} ms: {replicas} replicas of {cores} cores, "
        f"each {each.busy:.0%} busy, with p50 {each.p50_ms:.1f} ms and p99 {each.p99_ms:.1f} ms\n"
        f"helm --set {','.join(f'{name}={value}' for name, value in helm.items())}"
    )


def measured(settings: PlanSettings, serve: Serve) -> Replica:
    """Measure the cost curve, as a start does, then a busy service: its CPU time beyond the curve is HTTP and all else."""
    try:
        bodies = [line for line in settings.requests.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"requests ({settings.requests}) cannot be read: {error}") from None
    if not bodies:
        raise ConfigError(f"requests ({settings.requests}) must have at least one line")
    found, cores = find_bundles(settings.bundles), usable_cores()
    layout = slot_layout(settings, cores, found)
    model, *others = opened(BundleLoader.of(settings, layout, found).load(cores, strict=True))
    if others or layout.slots != cores or model.provider == CUDA:
        raise ConfigError(
            "--plan takes one bundle for the CPU (--bundles bundles/NAME), and a slot for each core"
        )
    scheduled, task = ScheduledModels(settings, layout), BY_ROW[model.task]
    scheduled.add(
        model, measure([model], layout, settings.batch_tokens, use_cache=settings.keep_tuning)[model.id]
    )
    curve = scheduled.throughput[model.id]
    throughput = Throughput(curve.overhead_s, curve.token_s, curve.budget, cores, curve.cost)
    mean_tokens = sum(map(len, model.tokenizer.pieces(bodies))) / len(bodies)  # with those of the JSON
    count = CONNECTIONS + int(TRIAL_S / (mean_tokens / throughput.tokens_per_s + LEAST_S))
    cpu_s, answers = try_requests(settings, serve, task.path, islice(cycle(bodies), count))
    requests = list[list[int]]()
    for answer in map(json.loads, answers):
        tokens = answer["usage"]["tokens"]
        texts = max(len(answer["results"]), -(-tokens // model.spec.max_tokens))
        requests.append([max(1, tokens // texts)] * texts)
    large = scheduled.large_budgets.get(model.id, curve.budget)
    work = sum(throughput.work(size) for sizes in requests for size in sizes) / count
    engine_s = work * throughput.seconds(large) / large
    return Replica(requests, max(0.0, cpu_s / count - engine_s), engine_s, throughput, large)
