"""What fine-tuning needs of each task: features, loss, and scores on held-out data."""
