"""Cost of 10 and of 300 labels to a GLiNER whose labels have an encoder of their own, with their vectors cached and not.

    python -m benchmarks.serve.label_vectors bundles/sentiment

Texts go to a BERT of 6 layers, 768 wide, labels to one of 6 layers, 384 wide, in float32 and with random weights, of which
few scores are over the floor, as of trained ones. One connection sends a text after the other, with labels in turns.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import BERT_SHAPES, command_line, machine_line, parser_of
from benchmarks.serve.load.running import free_port, prepare_process, server, service_command
from benchmarks.serve.load.texts import made_up_texts
from benchmarks.serve.load.wire import connect, exchange, request_bytes
from bert.bundle import LABELS_MODEL, LABELS_TOKENIZER, MODEL, TOKENIZER, write_bundle
from bert.checkpoint.tensor_names import SPANS, Weights, needed_shapes
from bert.config import BertConfig
from bert.manifest import LABELS_KEYS, Manifest
from bert.runtime import session_recipe
from bert.tasks.spec import DenseLayer, LabelPrompt, TaskSpec
from model_export.graph.bodies import graph_body
from model_export.graph.build import build_graph

WIDTH = 512
FLOOR_LOGIT = -8.0
"""Logit of a span: no request can ask for one so low."""
TEXTS = TaskSpec(
    "open_ner", label_prompt=LabelPrompt(0, 0, "markerV0", WIDTH, lstm_layers=0, has_encoder=True)
)
LABELS = TaskSpec(
    "similarity",
    dense=(
        DenseLayer(WIDTH, "identity"),
        DenseLayer(4 * WIDTH, "relu"),
        DenseLayer(WIDTH, "identity"),
    ),
    normalize=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path, help="its tokenizer is taken, a BERT's of 30,522 pieces")
    parser.add_argument("--rounds", type=int, default=60, help="texts for each number of labels")
    parser.add_argument("--log", type=Path, default=Path("runs/label-vectors.log"), help="the service's log")
    args = parser.parse_args(arguments)
    print(machine_line())
    print(f"Command: {command_line('serve.label_vectors', arguments)}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "bi", (args.bundle / TOKENIZER).read_bytes())
        port = free_port()
        ready = f"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        with server(
            service_command([Path(folder) / "bi"], port, []), port, ready, args.log, 120.0
        ) as running:
            asyncio.run(measure(running.url, args))
    return 0


async def measure(url: str, args: argparse.Namespace) -> None:
    """Print what requests cost that bring 1, 10 and 300 labels."""
    streams, texts = await connect(url), made_up_texts(args.rounds)
    names = made_up_texts(311, seed=1, mixture=((1.0, 1, 3),))
    sets = {
        count: [f"{name} {number}" for number, name in enumerate(names[:count])] for count in (1, 10, 300)
    }

    async def seconds(text: str, labels: list[str]) -> float:
        start = time.perf_counter()
        await exchange(streams, request_bytes(url, "/ner", {"text": text, "labels": labels}))
        return time.perf_counter() - start

    await seconds("a", ["warm"])
    first = {
        count: await seconds("a", [f"first {label}" for label in labels]) for count, labels in sets.items()
    }
    for labels in sets.values():
        await seconds("a", labels)
    warm: dict[int, list[float]] = {count: [] for count in sets}
    for text in texts:
        for count, labels in sets.items():
            warm[count].append(await seconds(text, labels))
    print("| labels | not cached, a short text, ms | cached, p50 ms | beside one label |\n|---|---|---|---|")
    for count, found in warm.items():
        ratio = median(mine / one for mine, one in zip(found, warm[1], strict=True))
        print(
            f"| {count} | {1000 * first[count]:.0f} | {1000 * median(found):.1f} | {ratio:.2f} |", flush=True
        )


def write(folder: Path, tokenizer: bytes) -> None:
    """Write the bundle of a random model, which is not verified."""
    common = {"num_hidden_layers": 6, "max_position_embeddings": 512}
    texts = BertConfig(**{**BERT_SHAPES["base"], **common})
    labels = BertConfig(**{**BERT_SHAPES["minilm"], **common})
    graphs = {}
    for name, config, spec in ((MODEL, texts, TEXTS), (LABELS_MODEL, labels, LABELS)):
        graph = build_graph(config, spec, random_weights(config, spec), partial(graph_body(config).cpu))
        graphs[name] = graph.SerializeToString()
    of_texts, of_labels = (described(config, spec) for config, spec in ((texts, TEXTS), (labels, LABELS)))
    more: dict[str, Any] = {
        "packing": {},
        "parity": {},
        "fused_operators": {},
        "attention": {},
        "fallback": {},
        "task": LABELS.to_dict(),
    }
    labels_encoder = {key: more.get(key, of_labels.get(key)) for key in LABELS_KEYS}
    manifest = Manifest("bi", "1", **of_texts, labels_encoder=labels_encoder)
    write_bundle(folder, manifest, {**graphs, TOKENIZER: tokenizer, LABELS_TOKENIZER: tokenizer})


def described(config: BertConfig, spec: TaskSpec) -> dict[str, Any]:
    """Return what a manifest says of a graph."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
    shape = {name: getattr(config, name) for name in names}
    return {"task": spec, "precision": "fp32", "layout": "rows", "session": session_recipe("rows"), **shape}


def random_weights(config: BertConfig, spec: TaskSpec) -> Weights:
    """Return random weights; all labels have about one vector, with which a span has FLOOR_LOGIT."""
    generator, weights = np.random.default_rng(0), Weights()
    for name, shape in needed_shapes(config, spec):
        scale = 0.002 if name.startswith((f"{SPANS}.out_project.3", "dense.2")) else 0.02
        center = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        weights[name] = generator.normal(center, scale, shape).astype(np.float32)
    for name in (f"{SPANS}.out_project.3.bias", "dense.2.bias"):
        if name in weights:
            sign = -1.0 if name.startswith(SPANS) else 1.0
            weights[name][:] = sign * (-FLOOR_LOGIT / WIDTH) ** 0.5
    return weights


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
