"""Training of BERT and its relatives: pretraining on text, fine-tuning on labelled data."""
