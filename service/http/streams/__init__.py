"""Requests of many lines, each a request of its own (application/x-ndjson), answered line by line."""
