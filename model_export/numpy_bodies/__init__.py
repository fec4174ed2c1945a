"""The bodies in plain numpy, one text at a time, for `model_export.reference`. They share no code with the graph."""
