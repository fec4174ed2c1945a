"""Measuring a machine at start: cost curves, warm-up, the cache of both."""
