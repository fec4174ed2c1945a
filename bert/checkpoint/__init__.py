"""Checkpoint folders: tensor names, weights, adapters, and base weights found by name."""
