"""Tokenizer files of several kinds, and the offsets and words that they give."""
