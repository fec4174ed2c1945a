"""The cost of waiting alone: the service's own policy on a machine that nothing disturbs, with the engine's measured speed.

    python -m benchmarks.serving.queue_limit bundles/sentiment

Texts come at random moments (a Poisson process) at a share of the most that the slots can do; a batch takes what the cost
curve says, and HTTP, tokenising and other work take nothing. Whatever a real service shows above this is the service's; what
it shows up to this is the price of random arrivals, and only fewer requests or more cores lower it.
"""

import argparse
import heapq
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serving.load.texts import made_up_texts, read_texts
from benchmarks.serving.report.percentiles import percentile
from service.autotune import cost_curve, warmup
from service.cpu_count import usable_cores
from service.engine.bundle_loader import load_models
from service.engine.slot_layout import lay_out_slots
from service.scheduling.fair_queue import FairQueue
from service.scheduling.jobs import Job
from service.scheduling.throughput import Throughput

CURVE_S = 5.0
MODEL = "m"
Cost = Callable[[int], float]
"""Tokens of a batch → its seconds on one slot."""


@dataclass(order=True, slots=True)
class Event:
    """A text that comes, or a batch that ends."""

    at: float
    number: int
    arrived: list["Arrival"] = field(compare=False)
    """Texts of a batch; empty for a text that comes."""
    coming: "Arrival | None" = field(default=None, compare=False)


@dataclass(slots=True, eq=False)
class Arrival(Job):
    """A text on its way."""

    came: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    layout = lay_out_slots(usable_cores(), args.slots, 1)
    (model,) = load_models([args.bundle], threads=1, verify_hashes=False, workers=1).models
    texts = read_texts(args.texts) if args.texts else made_up_texts(1000)
    lengths = [len(model.tokenizer.single(pieces)) for pieces in model.tokenizer.pieces(texts)]
    curve = warmup.measure_curve(model, layout, CURVE_S)
    speed = cost_curve.fit_throughput(
        [cost_curve.CostPoint(p.tokens, p.seconds) for p in curve], cost_curve.knee(curve), layout.slots
    )

    full = cost_curve.knee(curve, cost_curve.FULL)

    def cost(tokens: int) -> float:
        return speed.overhead_s + speed.token_s * tokens

    alike = [round(sum(lengths) / len(lengths))] * len(lengths)
    print(
        f"{layout.slots} slots; a batch takes {1000 * speed.overhead_s:.2f} ms + {1e6 * speed.token_s:.0f} us a token, at "
        f"most {speed.budget} tokens, {full} where much waits; texts of {min(lengths)} to {max(lengths)} tokens, {alike[0]} "
        "on average\n"
    )
    print("| texts | share of the most | p50 ms | p99 ms | alone, p50 ms | p99 over p50 alone |")
    print("|---|---|---|---|---|---|")
    for name, sizes in (("as they are", lengths), ("all of the average length", alike)):
        alone = percentile(sorted(cost(size) for size in sizes), 0.5)
        for share in args.shares:
            taken = sorted(simulate(sizes, share, speed, layout.slots, cost, args.requests, full=full))
            p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
            print(
                f"| {name} | {share:.0%} | {1000 * p50:.1f} | {1000 * p99:.1f} | {1000 * alone:.1f} | {p99 / alone:.1f} |"
            )
    return 0


def simulate(
    lengths: Sequence[int],
    share: float,
    speed: Throughput,
    slots: int,
    cost: Cost,
    requests: int,
    seed: int = 0,
    full: int | None = None,
) -> list[float]:
    """Return the seconds that each text took from its arrival, at a share of the most texts a second.

    `full` is the tokens of the largest batch, by default those of the speed.
    """
    draw, now, number = random.Random(seed), 0.0, 0
    mean = sum(lengths) / len(lengths)
    rate = share * slots / (mean * cost(speed.budget) / speed.budget)
    queue = FairQueue(10**9, {MODEL: speed.budget}, {MODEL: speed}, slots, {MODEL: full or speed.budget})
    events, free, taken = list[Event](), slots, list[float]()
    for number in range(requests):
        now += draw.expovariate(rate)
        heapq.heappush(events, Event(now, number, [], Arrival(MODEL, [draw.choice(lengths)], came=now)))
    while events:
        event = heapq.heappop(events)
        now = event.at
        if event.coming is not None:
            queue.try_admit(event.coming, now)
        else:
            free += 1
            taken += [now - text.came for text in event.arrived]
        while free and (batch := queue.next_batch(now, free)):
            number, free = number + 1, free - 1
            inside = [item.job for item in batch.items if isinstance(item.job, Arrival)]
            heapq.heappush(events, Event(now + cost(batch.tokens), number, inside))
    return taken


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text a line; else made up")
    parser.add_argument("--slots", type=int, help="engine slots; by default one a core")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.8])
    parser.add_argument("--requests", type=int, default=40_000)
    args = parser.parse_args(arguments)
    print(f"Command: python -m benchmarks.serving.queue_limit {shlex.join(arguments or sys.argv[1:])}")
    return args


if __name__ == "__main__":
    sys.exit(main())
