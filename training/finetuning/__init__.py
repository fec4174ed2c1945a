"""Fine-tuning on labelled data: what it gives to the engine in `training.engine`."""
