"""Files of rows through a model: read, predict in large batches, write; resumed after a kill."""
