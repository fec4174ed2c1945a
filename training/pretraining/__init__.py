"""Pretraining: tokens to examples to a checkpoint."""
