"""Examples: the token sequences that a model is pretrained on."""
