"""Hard negatives: texts that a model takes for the right one."""
