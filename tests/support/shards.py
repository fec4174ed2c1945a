"""Shards of a prepared corpus, checked against its index."""

import hashlib

from training.corpus.shards import Corpus


def assert_hashes(corpus: Corpus) -> None:
    """Compare every file of the shards with its hash in corpus.json."""
    for split in corpus.info["splits"].values():
        for entry in split["shards"]:
            for part, expected in entry["sha256"].items():
                content = (corpus.folder / f"{entry['name']}.{part}").read_bytes()
                assert hashlib.sha256(content).hexdigest() == expected, (entry["name"], part)
