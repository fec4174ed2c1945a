"""Code shared by training, export and service: BERT's configuration, tokenizer, tasks, metrics and file formats."""
