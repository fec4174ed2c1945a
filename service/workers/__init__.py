"""Processes: supervisor, engine worker, frontends and the messages between them."""
