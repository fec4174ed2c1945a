"""Sentences at a constant low rate, alone and while a long document is read again and again.

    python -m benchmarks.serving.mixed_traffic bundles/sentiment bundles/qa --rate 10 --seconds 60

One service holds both models. The rounds take turns: sentences alone, sentences with the document. Prints latencies from
the moment each sentence was due, and what the document makes of their p99.
"""

import argparse
import random
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serving.load.load import Load, closed_loop
from benchmarks.serving.load.running import free_port, prepare_process, server
from benchmarks.serving.load.service_command import service_command
from benchmarks.serving.load.texts import FACTS, SENTENCES, made_up_document, made_up_texts, read_texts
from benchmarks.serving.load.wire import Request, request_bytes
from benchmarks.serving.open_loop import OpenLoad, open_loop
from benchmarks.serving.report.percentiles import Spread
from bert.bundle import read_bundle
from bert.tasks.qa import encode
from bert.tokenizer import Tokenizer

HEAD_START_S = 0.5
"""The document is being read when the first sentence is due."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    question, context, windows = long_document(args.qa_bundle, args.windows)
    texts = read_texts(args.texts) if args.texts else made_up_texts(2000, mixture=SENTENCES)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    sentences: list[Request] = [
        [request_bytes(url, "/classify", {"text": text, "truncate": True})] for text in texts
    ]
    document: list[Request] = [[request_bytes(url, "/qa", {"question": question, "context": context})]]
    command = service_command([args.bundle, args.qa_bundle], port, shlex.split(args.service))
    print(f"a document of {windows} windows, sentences at {args.rate:g}/s, {args.seconds:g} s each\n")
    print("| round | sentences | p50 ms | p99 ms | client late p99 ms | documents read | failed |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    with server(command, port, sentences[0][0], args.log, args.start_seconds) as running:
        closed_loop(running.url, sentences, 2, 1.0)
        for number in range(1, args.rounds + 1):
            alone = open_loop(running.url, sentences, args.rate, args.seconds)
            print(row(number, "alone", alone, 0), flush=True)
            beside, read = with_document(running.url, sentences, document, args.rate, args.seconds)
            print(row(number, "with the document", beside, len(read.latencies_ms)), flush=True)
            ratios.append(beside.percentile_ms(0.99) / alone.percentile_ms(0.99))
    print(f"\np99 with the document over p99 alone: {Spread.of(ratios).text(2)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("bundle", type=Path, help="a bundle for classification")
    add("qa_bundle", type=Path, help="a bundle for qa")
    add("--rate", type=float, default=10.0, help="sentences a second")
    add("--seconds", type=float, default=60.0, help="of each measurement")
    add("--rounds", type=int, default=3)
    add("--windows", type=int, default=100, help="of the document")
    add("--texts", type=Path, help="a file with one sentence a line; without it they are made up")
    add("--service", default="--request-timeout-ms 600000", help="settings for bert-serve")
    add("--start-seconds", type=float, default=300.0, help="the service may take to start")
    add("--log", type=Path, default=Path("runs/mixed-traffic.log"), help="the service's log")
    return parser.parse_args(arguments)


def long_document(bundle: Path, windows: int) -> tuple[str, str, int]:
    """Return a question and a made-up document that the model reads in so many windows, give or take one, and how many.

    Raises ValueError if no length was found that gives them.
    """
    opened = read_bundle(bundle)
    tokenizer, spec = Tokenizer.load(opened.tokenizer_path), opened.manifest.task
    fact, question = FACTS[0]
    words = windows * (spec.max_tokens - spec.stride)
    chance = random.Random(0)
    for _ in range(100):
        context = made_up_document(words, fact, chance)
        asked, read = tokenizer.pieces([question, context])
        found = len(encode(tokenizer, asked, read, spec))
        if abs(found - windows) <= 1:
            return question, context, found
        words = max(1, round(words * windows / found))
    raise ValueError(f"no document of {windows} windows was found")


def with_document(
    url: str, sentences: Sequence[Request], document: Sequence[Request], rate: float, seconds: float
) -> tuple[OpenLoad, Load]:
    """Measure the sentences while one connection asks about the document without a pause."""
    read: list[Load] = []
    reader = threading.Thread(
        target=lambda: read.append(closed_loop(url, document, 1, HEAD_START_S + seconds)), daemon=True
    )
    reader.start()
    reader.join(HEAD_START_S)
    found = open_loop(url, sentences, rate, seconds)
    reader.join()
    if not read:
        raise SystemExit("the document was not answered; the service's log says why")
    return found, read[0]


def row(number: int, title: str, load: OpenLoad, documents: int) -> str:
    """Return a line of the table."""
    late = load.lateness_ms[int(0.99 * (len(load.lateness_ms) - 1))]
    flag = " (late)" if load.client_was_late else ""
    return (
        f"| {number} | {title} | {load.percentile_ms(0.5):.1f} | {load.percentile_ms(0.99):.1f} "
        f"| {late:.1f}{flag} | {documents} | {load.failures} |"
    )


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
