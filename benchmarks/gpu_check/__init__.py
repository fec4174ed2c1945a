"""One command that tries everything this project does on a GPU, and writes one report."""
