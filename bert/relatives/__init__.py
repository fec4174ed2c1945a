"""What the relatives of BERT have of their own."""
