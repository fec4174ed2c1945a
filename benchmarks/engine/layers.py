"""CPU time of one layer of BERT, DeBERTa and ModernBERT, by the length of the text.

    python -m benchmarks.engine.layers --tokens 128,256,512

A layer's time is that of five equal layers less that of one, over four. Graphs run in turns, on one thread, and the best
round counts. The bodies are 768 wide with 12 heads; weights are random.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.machine import machine_line
from benchmarks.serving.baselines.encoder_shapes import write_encoder
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.encoding import Encoding
from model_export.graph.bert_graph import build_graph
from model_export.graph.operators import operators
from model_export.verify.precision import GraphSession, Int8, packer_for
from model_export.verify.texts import EncodedText, make_text
from service.engine.sample_texts import sample_text

FEW, MANY = 1, 5
_WIDE = {"hidden_size": 768, "num_attention_heads": 12, "vocab_size": 400}
_FED = {**_WIDE, "intermediate_size": 3072, "max_position_embeddings": 8192}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("minilm-l6", _FED),
    "deberta-v3": ("deberta-v3-base", _FED),
    "modernbert, whole text": ("modernbert-base", {**_WIDE, "layer_types": "full_attention"}),
    "modernbert, window": ("modernbert-base", {**_WIDE, "layer_types": "sliding_attention"}),
}
"""Name → published shape, and what is changed in it."""


def checkpoint_of(name: str, layers: int, folder: Path) -> Checkpoint:
    """Write a body with so many layers, and read it."""
    shape, changes = BODIES[name]
    if kind := changes.get("layer_types"):
        changes = {**changes, "layer_types": [kind] * layers}
    write_encoder(shape, folder, num_hidden_layers=layers, **changes)
    return read_checkpoint(folder)


def session_of(checkpoint: Checkpoint, precision: str) -> GraphSession:
    """Open the graph on one thread."""
    packer = packer_for(checkpoint.config, precision)
    if precision == "int8":
        return GraphSession(Int8(checkpoint, [_text(length) for length in (16, 64)]).model, packer, threads=1)
    config, spec = checkpoint.config, checkpoint.spec
    return GraphSession(
        build_graph(config, spec, checkpoint.weights, operators(config).cpu), packer, threads=1
    )


def _text(tokens: int) -> EncodedText:
    encoding: Encoding = sample_text(tokens)
    return make_text(encoding, "classification")


def layer_ms(
    sessions: Mapping[str, Sequence[GraphSession]], texts: Sequence[EncodedText], rounds: int
) -> dict[str, float]:
    """Return the milliseconds of a layer by the name of the body, of all texts in one batch."""
    best = {name: [float("inf")] * 2 for name in sessions}
    for _ in range(rounds + 1):
        for name, pair in sessions.items():
            for number, session in enumerate(pair):
                began = time.thread_time()
                session.run(texts)
                best[name][number] = min(best[name][number], time.thread_time() - began)
    return {name: 1000 * (many - few) / (MANY - FEW) for name, (few, many) in best.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="32,128,256,512,1024,2048", help="lengths, comma-separated")
    parser.add_argument("--texts", type=int, default=1, help="texts of a batch")
    parser.add_argument(
        "--bodies", default=",".join(map(str, range(len(BODIES)))), help="numbers of the bodies"
    )
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    names = [list(BODIES)[int(number)] for number in args.bodies.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        sessions = {
            name: [
                session_of(checkpoint_of(name, layers, Path(folder) / f"{number}-{layers}"), args.precision)
                for layers in (FEW, MANY)
            ]
            for number, name in enumerate(names)
        }
    print(f"{machine_line('onnxruntime')}, 1 thread, {args.precision}, {args.texts} texts a batch")
    print(f"$ python -m benchmarks.engine.layers {' '.join(arguments or sys.argv[1:])}\n")
    print(f"| tokens of a text | {' | '.join(f'{name}, ms' for name in names)} |")
    print("|---" * (len(names) + 1) + "|")
    for tokens in map(int, args.tokens.split(",")):
        found = layer_ms(sessions, [_text(tokens)] * args.texts, args.rounds)
        print(f"| {tokens} | {' | '.join(f'{found[name]:.2f}' for name in names)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
