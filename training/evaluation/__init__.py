"""Comparing checkpoints by what they reach when they are fine-tuned."""
