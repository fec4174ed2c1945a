"""Raw text for `bert-prepare`, a vocabulary for it, and what a run wrote."""

import json
from pathlib import Path

import numpy as np

TEXT = "the quick brown fox jumps over a lazy dog while many small birds sing and nobody listens"
WORDS = TEXT.split()


def texts(documents: int, sentences: int = 12) -> list[str]:
    rng = np.random.default_rng(0)
    lines = [
        [
            " ".join(rng.choice(WORDS, 8)).capitalize() + ("." if rng.random() < 0.8 else ".\n")
            for _ in range(sentences)
        ]
        for _ in range(documents)
    ]
    return [" ".join(each) for each in lines]


def write_jsonl(file: Path, documents: list[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return file


def write_vocabulary(file: Path) -> Path:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "##s", "bird", *WORDS]
    file.write_text("\n".join(pieces))
    return file


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
