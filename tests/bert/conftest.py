"""What these tests read from outside: real texts beside the checkout, and the packaged weights."""

import csv
import json
from pathlib import Path

import pytest

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.errors import CheckpointError
from bert.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The checkpoint folder of the packaged base."""
    try:
        return resolve_base(MINILM)
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def packaged(minilm: Path) -> Tokenizer:
    """The tokenizer of the packaged base: BERT's uncased one, from `tokenizer.json`."""
    return Tokenizer.load(minilm)


@pytest.fixture(scope="session")
def real_texts(shared_data: Path) -> list[str]:
    """300 real texts: film reviews, tweets, paragraphs of Wikipedia and Chinese reviews."""
    with (shared_data / "glue/SST-2/dev.tsv").open(encoding="utf-8", newline="") as file:
        reviews = [row[0] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:101]
    lines = (shared_data / "ner/btc/test.conll").read_text(encoding="utf-8").split("\n")[:1500]
    tweets = " ".join(line.split("\t")[0] or "\n" for line in lines).split("\n")
    articles = json.loads((shared_data / "squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [p["context"] for article in articles for p in article["paragraphs"][:5]][:60]
    chinese = (shared_data / "zh/chnsenticorp/dev.tsv").read_text(encoding="utf-8").split("\n")[:50]
    return [*reviews, *tweets[:90], *paragraphs, *chinese]
