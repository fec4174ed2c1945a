"""Labels of the request, all judged in one run, by GLiClass (Stepanov et al. 2025, arXiv 2508.07662)."""
