"""Preparation of a corpus: raw text to shards of tokens on disk, once, at any size."""
