"""Optimisers of a run, and the steps that they share."""
