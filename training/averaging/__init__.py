"""Averages of fine-tuned checkpoints, and small files of what training changed."""
