"""Training whose reports have empty pictures: to draw them takes a second and a half of CPU time, as a short run does.

`python -m tests.support.undrawn MODULE ARGUMENTS` runs the `main` of a command's module.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch

from training.report import finetuning, pretraining

DRAWN_BY = ((finetuning, "draw_panels"), (finetuning, "draw_confusion"), (pretraining, "draw_panels"))


@contextmanager
def undrawn() -> Iterator[None]:
    """Leave the pictures of reports empty until the block ends."""
    patches = [patch.object(module, name, lambda path, *_: path.touch()) for module, name in DRAWN_BY]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


if __name__ == "__main__":
    del sys.argv[0]
    with undrawn():
        import_module(sys.argv[0]).main()
