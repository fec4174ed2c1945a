"""Published checkpoints compared with transformers: the list, both sides' answers, and the command."""
