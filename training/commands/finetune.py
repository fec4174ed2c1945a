"""`bert-finetune`: labelled data to a fine-tuned checkpoint.

Several processes by `torchrun -m training.commands.finetune`.
"""

import shlex
import sys

from training.command_line import run
from training.settings import from_command_line


def main() -> None:
    """Run from the command line."""
    run(_body)


def _body() -> None:
    settings = from_command_line()
    from training.finetune import finetune

    finetune(settings, shlex.join(["bert-finetune", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
