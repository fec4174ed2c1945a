"""Measurements of the check, each in a process of its own."""
