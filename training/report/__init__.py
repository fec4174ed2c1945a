"""The reports at the end of a run, of fine-tuning and of pretraining."""
