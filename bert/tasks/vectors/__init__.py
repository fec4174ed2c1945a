"""Vectors of texts: one of a text, or others for other kinds of search; folders of sentence-transformers."""
