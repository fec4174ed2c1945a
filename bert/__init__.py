"""What training, export and service share: BERT's configuration, tokenizer, tasks, metrics and file formats."""
