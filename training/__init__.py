"""Fine-tuning of BERT: labelled data in, a checkpoint folder out."""
