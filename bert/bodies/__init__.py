"""The bodies that are read, BERT's and others: their words of `config.json`, the shapes of their tensors, their families."""
