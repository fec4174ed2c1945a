"""`bert-serve --plan`: how many replicas of this machine a load needs."""
