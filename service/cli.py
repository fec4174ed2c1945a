"""`bert-serve`: reads the settings, serves, and ends on a signal."""

import os
import sys
from collections.abc import Sequence

from bert.errors import BertError
from service import logs
from service.command_line import SettingsRefusedError, read_command
from service.serve import USAGE_ERROR, serve
from service.settings import ServeSettings, unknown_variables
from service.tune import print_curves


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service.

    Returns 0 after a signal, 1 if it could not start, 2 for settings that break a rule.
    """
    try:
        command = read_command(sys.argv[1:] if arguments is None else arguments)
    except SettingsRefusedError as refused:
        for line in (*refused.lines, "`bert-serve --help` lists every setting"):
            print(f"bert-serve: {line}", file=sys.stderr)
        return USAGE_ERROR
    settings = command.settings
    logs.configure(settings.log_level, settings.log_format)
    for name in unknown_variables(os.environ):
        logs.LOGGER.warning("%s is no setting and has no effect; `bert-serve --help` lists them", name)
    return _tune(settings) if command.tune else serve(settings)


def _tune(settings: ServeSettings) -> int:
    """Print what the machine gives; returns 1 where the models cannot be loaded."""
    try:
        print_curves(settings)
    except BertError as error:
        print(f"bert-serve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
