"""`bert-serve`: reads the settings, serves, and ends on a signal."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.exit_signals import INTERRUPTED, exit_on_stop

if TYPE_CHECKING:
    from service.settings import ServeSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service.

    Returns 0 after a signal, 1 if it could not start, 2 for settings that break a rule.
    """
    with exit_on_stop():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    # Here and not above: a signal that comes while these are imported is to end the process with 0 too.
    from service import logs
    from service.command_line import USAGE_ERROR, SettingsRefusedError, read_command
    from service.settings import unknown_variables

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
    if command.tune:
        return _tune(settings)
    from service.serve import serve  # takes a second, which --help and wrong settings need not wait for

    return serve(settings)


def _tune(settings: "ServeSettings") -> int:
    """Print what the machine gives; returns 1 where the models cannot be loaded, 130 after Ctrl-C."""
    from bert.errors import BertError
    from service.autotune.tune import print_curves

    try:
        with exit_on_stop(INTERRUPTED):
            print_curves(settings)
    except BertError as error:
        print(f"bert-serve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
