"""`bert-pretrain`: a prepared corpus to a pretrained checkpoint.

Several processes by `torchrun -m training.commands.pretrain`.
"""

import shlex
import sys

from bert.settings import read_settings
from training.command_line import command
from training.pretraining.settings import PretrainSettings


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(PretrainSettings)
    from training.pretrain import pretrain

    pretrain(settings, shlex.join(["bert-pretrain", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
