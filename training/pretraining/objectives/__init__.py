"""Pretraining objectives: what is asked of the model, and its losses."""
