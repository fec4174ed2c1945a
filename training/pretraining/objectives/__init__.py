"""Pretraining objectives: the task of the model, and its losses."""

from training.pretraining.objectives.build import build

__all__ = ["build"]
