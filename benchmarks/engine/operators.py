"""Which operators the graphs should have here: each part in its equal forms, and where a bundle's own time goes.

    python -m benchmarks.engine.operators bundles/sentiment

The forms take turns on one thread, and the best of the rounds counts: what else runs makes a run slower, never faster. Of
the bundles ONNX Runtime's own profile is read; the rate of their products stands beside that of a large product of the
same kind, which is what these kernels reach at most.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.machine import machine_line
from benchmarks.common.timing import least_seconds
from benchmarks.engine.op_variants import (
    Arrays,
    GraphSize,
    OpVariant,
    inputs_of,
    linear,
    linear_8_bits,
    parts,
)
from benchmarks.engine.texts import random_texts
from bert.bundle import Bundle, read_bundle
from bert.graph_inputs import flat_inputs, row_inputs
from bert.packing import Packing
from bert.runtime import open_session, session_options
from service.engine.onnx_engine import provider_of

CPU = "CPUExecutionProvider"
PRODUCTS = ("Gemm", "MatMul", "MatMulIntegerToFloat")
LARGE = GraphSize(2048, 64, 2048, 16, 2048)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(machine_line("onnxruntime", "numpy"))
    print(f"Command: python -m benchmarks.engine.operators {shlex.join(arguments or sys.argv[1:])}\n")
    shape = GraphSize(args.tokens, args.row, args.width, args.heads, 4 * args.width)
    print(
        f"{args.tokens} tokens in rows of {args.row}, {args.width} wide, {args.heads} heads, {args.provider}\n"
    )
    print("| part | form | ms | to the exported form | |\n|---|---|---|---|---|")
    for part, forms in parts(shape).items():
        for row in compared(part, forms, args.provider, args.rounds):
            print(row, flush=True)
    if args.bundles:
        rates = {form.name: rate for form, rate in large_products(args.provider, args.rounds)}
        print("\nLarge products: " + ", ".join(f"{name} {rate:.0f} Gop/s" for name, rate in rates.items()))
    for folder in args.bundles:
        bundle = read_bundle(folder, verify_hashes=False)
        print(f"\n{bundle.manifest.name}, {bundle.manifest.precision}:\n")
        print("| operator | nodes | ms | % | Gop/s |\n|---|---|---|---|---|")
        print("\n".join(profiled(bundle, args.tokens, args.row, args.rounds)), flush=True)
    return 0


def compared(part: str, forms: Sequence[OpVariant], provider: str, rounds: int) -> list[str]:
    """Return a row for each form; one that this provider lacks is said to be so."""
    runs: dict[str, Callable[[], object]] = {}
    for form in forms:
        try:
            runs[form.name] = opened(form, provider)
        except Exception as error:  # onnxruntime raises its own, undocumented classes
            print(f"{part}: {form.name} does not run on {provider}: {str(error)[:120]}", file=sys.stderr)
    best = least_seconds(runs, rounds)
    first = next(iter(best.values()))
    notes = {form.name: form.note for form in forms}
    return [
        f"| {part} | {name} | {1000 * seconds:.2f} | {seconds / first:.2f} | {notes[name]} |"
        for name, seconds in best.items()
    ]


def opened(form: OpVariant, provider: str) -> Callable[[], list[Any]]:
    """Return a run of the form, on one thread, with just the operators that it has: nothing is put in their place."""
    options = session_options(1, "rows", "ORT_DISABLE_ALL")
    session = open_session(form.model.SerializeToString(), provider, options)
    inputs: Arrays = inputs_of(form.model)
    return lambda: session.run(None, inputs)


def large_products(provider: str, rounds: int) -> list[tuple[OpVariant, float]]:
    """Return the exported forms of a large linear layer, with 10^9 operations a second."""
    operations = 2 * LARGE.tokens * LARGE.width * LARGE.inner
    found = []
    for form in (linear(LARGE)[0], linear_8_bits(LARGE)[0]):
        best = least_seconds({form.name: opened(form, provider)}, max(3, rounds // 4))[form.name]
        found.append((form, operations / best / 1e9))
    return found


def profiled(bundle: Bundle, tokens: int, row: int, rounds: int) -> list[str]:
    """Return a row for each operator of a bundle's graph: least milliseconds of its nodes, summed."""
    inputs = batch(bundle, tokens, row)
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(1, bundle.manifest.layout)
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "run")
        session = open_session(bundle.model_path, provider_of(bundle), options)
        known = {tensor.name for tensor in session.get_inputs()}
        for _ in range(rounds + 1):
            session.run(None, {name: value for name, value in inputs.items() if name in known})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return table(events)


def table(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows, longest first; of products also 10^9 operations a second."""
    nodes: dict[tuple[str, str], list[int]] = defaultdict(list)
    operations: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            operator = event["args"]["op_name"]
            nodes[operator, event["name"]].append(event["dur"])
            operations[event["name"]] = product_operations(operator, event["args"])
    ms, counts, work = (
        defaultdict[str, float](float),
        defaultdict[str, int](int),
        defaultdict[str, float](float),
    )
    for (operator, name), durations in nodes.items():
        ms[operator] += min(durations) / 1000
        counts[operator] += 1
        work[operator] += operations[name]
    total = sum(ms.values())
    return [
        f"| {operator} | {counts[operator]} | {spent:.2f} | {100 * spent / total:.0f} | "
        f"{f'{work[operator] / spent / 1e6:.0f}' if work[operator] else ''} |"
        for operator, spent in sorted(ms.items(), key=lambda pair: -pair[1])
        if spent > 0.005 * total
    ]


def product_operations(operator: str, about: dict[str, Any]) -> float:
    """Return the operations of a product by the shapes that the profile has; 0 for what is none."""
    if operator not in PRODUCTS:
        return 0.0
    (left,) = about["input_type_shape"][0].values()
    (out,) = about["output_type_shape"][0].values()
    return float(2 * np.prod(out) * left[-1])


def batch(bundle: Bundle, tokens: int, row: int) -> dict[str, Any]:
    """Return inputs of one text a row."""
    texts = random_texts(str(row), tokens, pieces=bundle.manifest.vocab_size)
    heads = [np.zeros(1, np.intp)] * len(texts)
    if bundle.manifest.layout == "flat":
        return dict(flat_inputs(texts, heads))
    placed = Packing(len(texts), row, tuple(row * n for n in range(len(texts))))
    return dict(row_inputs(texts, placed, heads))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, nargs="*", help="whose operators are timed")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--row", type=int, default=64)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--provider", default=CPU)
    parser.add_argument("--rounds", type=int, default=40)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
