"""The training engine: trainer, loop, checkpoints, optimiser, distribution."""
