"""Each pretraining recipe beside the same recipe written with transformers' modules."""
