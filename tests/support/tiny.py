"""Small real bundles.

Two layers, 32 wide, random weights. Right in form, in a second; what they say means nothing.
"""

import string
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.bundle import QUERY_WEIGHTS, write_bundle
from bert.checkpoint.tensor_names import needed_shapes
from bert.config import BertConfig
from bert.manifest import Manifest
from bert.tasks.spec import TaskSpec
from bert.text.wordpiece import SPECIAL_PIECES
from bert.tokenizer import Tokenizer
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.build import build_graph
from model_export.graph.embedding import pools_chunks
from model_export.graph.tables import separate_tables

WORDS = [
    *("a", "the", "film", "was", "warm", "funny", "dull", "angela", "merkel", "met", "in", "munich", "paris"),
    *("who", "where", "how", "long", "is", "it", "and", "not"),
]
MAX_TOKENS = 32
SPECS = {
    "mood": TaskSpec("classification", ("negative", "positive"), max_tokens=MAX_TOKENS),
    "entailment": TaskSpec(
        "classification",
        ("no", "yes", "maybe"),
        pair=True,
        max_tokens=MAX_TOKENS,
        examples=({"text": "A warm film.", "text_pair": "A good one."},),
    ),
    "topics": TaskSpec(
        "classification",
        ("a", "b", "c"),
        problem_type="multi_label",
        max_tokens=MAX_TOKENS,
        examples=({"text": "the film was long"}, {"text": "angela met merkel in munich"}),
    ),
    "stars": TaskSpec("classification", ("stars",), problem_type="regression", max_tokens=MAX_TOKENS),
    "names": TaskSpec("ner", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_tokens=MAX_TOKENS, stride=8),
    "reader": TaskSpec(
        "qa",
        max_tokens=MAX_TOKENS,
        stride=8,
        max_question_tokens=20,
        max_answer_tokens=6,
        allows_no_answer=True,
    ),
    "meaning": TaskSpec("similarity", max_tokens=MAX_TOKENS),
    "stories": TaskSpec("multiple_choice", max_tokens=MAX_TOKENS),
    "gaps": TaskSpec("fill_mask", max_tokens=MAX_TOKENS),
}


def vocabulary() -> list[str]:
    """Special pieces, words, and every letter, so that any Latin text is some pieces."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    return [
        *SPECIAL_PIECES,
        *WORDS,
        *(x for x in letters if x not in WORDS),
        *(f"##{x}" for x in letters[:36]),
    ]


def tiny_tokenizer() -> Tokenizer:
    """Return the tokenizer of these bundles."""
    with tempfile.TemporaryDirectory() as aside:
        vocab = Path(aside) / "vocab.txt"
        vocab.write_text("\n".join(vocabulary()), encoding="utf-8")
        return Tokenizer.load(vocab)


def tiny_weights(config: BertConfig, spec: TaskSpec, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return random weights by their names in checkpoints."""
    base, generator = np.random.default_rng(0), np.random.default_rng(seed)
    return {
        name: (base if name.startswith("bert.embeddings") else generator)
        .normal(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.2, shape)
        .astype(np.float32)
        for name, shape in needed_shapes(config, spec)
    }


def write_tiny_bundle(
    folder: Path,
    name: str,
    spec: TaskSpec,
    seed: int,
    positions: int = 64,
    vocab_size: int | None = None,
    tokenizer_json: str | None = None,
    version: str = "1",
    embedding_ranges: dict[str, list[float]] | None = None,
) -> None:
    """Write a bundle with random weights; all of one size have the same embeddings, as over one base.

    With a `tokenizer_json` other than this module's, `vocab_size` is that of its pieces.
    """
    config = BertConfig(vocab_size or len(vocabulary()), 32, 2, 4, 64, max_position_embeddings=positions)
    weights = tiny_weights(config, spec, seed)
    graph = build_graph(config, spec, weights, partial(CpuOps))
    tokenizer = (tokenizer_json or tiny_tokenizer().to_json()).encode()
    manifest = Manifest(
        name,
        version,
        spec,
        "fp32",
        "rows",
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.max_position_embeddings,
        session={"graph_optimization_level": "ORT_ENABLE_BASIC", "providers": ["CPUExecutionProvider"]},
        reads_chunks=pools_chunks(spec),
        embedding_ranges=embedding_ranges or {},
    )
    tables = {name: b"".join(parts) for name, parts in separate_tables(graph).items()}
    if spec.query_weights:
        tables[QUERY_WEIGHTS] = np.abs(weights["query.weight"]).tobytes()
    write_bundle(
        folder, manifest, {"model.onnx": graph.SerializeToString(), "tokenizer.json": tokenizer, **tables}
    )


def write_tiny_bundles(folder: Path) -> None:
    """Write a bundle for each of SPECS."""
    for seed, (name, spec) in enumerate(SPECS.items()):
        write_tiny_bundle(folder / name, name, spec, seed)
