"""The only torch shared between packages: BERT, its heads, and reading and writing checkpoints."""
