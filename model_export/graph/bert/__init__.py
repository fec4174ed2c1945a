"""BERT's body in the graph: its layers, and their operators for each kind of device."""
