"""Readers of labelled data: files in the formats users have them in, to frozen examples.

Every reader checks what it reads and raises `bert.errors.DataError` with file, line and reason, up to twenty
problems at once. Fine-tuning and export share them.
"""
