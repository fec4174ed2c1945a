"""`bert-finetune`: labelled data to a fine-tuned checkpoint.

Several processes by `torchrun -m training.commands.finetune`.
"""

import shlex
import sys

from bert.settings import read_settings
from training.command_line import command
from training.settings import FinetuneSettings


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(FinetuneSettings)
    from training.finetune import finetune

    finetune(settings, shlex.join(["bert-finetune", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
