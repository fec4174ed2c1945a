"""`bert-mine`: hard negatives for pairs of texts that belong together."""

from bert.settings import read_settings
from training.command_line import command
from training.mining.settings import MineSettings


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(MineSettings)
    from training.mining.mine import mine

    mine(settings)


if __name__ == "__main__":
    main()
