"""`bert-evaluate`: a table of what checkpoints reach when they are fine-tuned, over tasks and seeds."""

import shlex
import sys

from training.command_line import command
from training.evaluation.settings import from_command_line


@command
def main() -> None:
    """Run from the command line."""
    settings = from_command_line()
    from training.evaluate import Comparison

    comparison = Comparison(settings, shlex.join(["bert-evaluate", *sys.argv[1:]]))
    print(comparison.run(), end="")
    comparison.raise_failures()


if __name__ == "__main__":
    main()
