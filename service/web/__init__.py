"""The pages that people see: one to try the models, one that shows the running service."""
