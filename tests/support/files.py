"""A file with some content, for a test."""

from collections.abc import Callable
from pathlib import Path

Write = Callable[[str, str], Path]
