"""Tokenizer files of several kinds, and what offsets and words they give."""
