"""Code for the relatives of BERT: their names and config keys, and relative positions."""
