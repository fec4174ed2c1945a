"""Measuring the machine at start: cost curves, and their cache."""
