"""Entities of labels that the request brings along, by GLiNER (Zaratiana et al. 2023, arXiv 2311.08526)."""
