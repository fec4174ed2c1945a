"""`bert-finetune`: labelled data to a fine-tuned checkpoint.

Several processes by `torchrun -m training.commands.finetune`.
"""

import os
import shlex
import sys
from pathlib import Path

from bert.settings import read_settings
from training.command_line import command
from training.settings import FinetuneSettings


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(FinetuneSettings)
    from training.finetune import finetune

    best = finetune(settings, shlex.join(["bert-finetune", *sys.argv[1:]]))
    if os.environ.get("RANK", "0") == "0":
        print("next:", *next_commands(best, settings.output_dir.resolve().name), sep="\n  ", file=sys.stderr)


def next_commands(best: Path, name: str) -> list[str]:
    """Return the commands that export a checkpoint and serve it."""
    bundles = Path("my-bundles")  # not bundles/, where the demo models would answer in its place
    export = ["bert-export", "--checkpoint", str(best), "--out", str(bundles / name)]
    return [shlex.join(export), shlex.join(["bert-serve", "--bundles", str(bundles)])]


if __name__ == "__main__":
    main()
