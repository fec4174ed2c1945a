"""Masking: which positions an example asks for, and what stands there instead."""
