"""`bert-serve`: reads the settings, serves, and ends on a signal."""

import os
import sys
from collections.abc import Sequence

from service import logs
from service.command_line import SettingsRefusedError, load_settings
from service.server import USAGE_ERROR, serve
from service.settings import unknown_variables


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service.

    Returns 0 after a signal, 1 if it could not start, 2 for settings that break a rule.
    """
    try:
        settings = load_settings(sys.argv[1:] if arguments is None else arguments)
    except SettingsRefusedError as refused:
        for line in (*refused.lines, "`bert-serve --help` lists every setting"):
            print(f"bert-serve: {line}", file=sys.stderr)
        return USAGE_ERROR
    logs.configure(settings.log_level, settings.log_format)
    for name in unknown_variables(os.environ):
        logs.LOGGER.warning("%s is no setting and has no effect; `bert-serve --help` lists them", name)
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
