"""DeBERTa's body in the graph: BERT's layers with scores that depend on distances, and a convolution."""
