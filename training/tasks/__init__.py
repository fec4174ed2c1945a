"""Fine-tuning of each task: features, loss, and scores on held-out data."""
