"""`bert-average`: the mean of fine-tuned checkpoints, whole or as a small difference to their base."""

import shlex
import sys

from bert.settings import read_settings
from training.averaging.settings import AverageSettings
from training.command_line import command


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(AverageSettings)
    from training.averaging.average import average

    average(settings, shlex.join(["bert-average", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
