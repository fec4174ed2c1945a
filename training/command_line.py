"""Exit codes of this package's commands."""

import logging
import sys
from collections.abc import Callable
from functools import wraps

from bert.errors import BertError
from bert.settings import INTERRUPTED, USAGE_ERROR, SettingsError
from training.engine.signals import RunStopped


def command(body: Callable[[], object]) -> Callable[[], None]:
    """Turn a function into a command: a user's mistake is one clear sentence and exit code 1, in settings 2.

    A stop that was asked for ends in its signal's code (130, 143): a script must not take it for the end.
    """

    @wraps(body)
    def main() -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        try:
            body()
        except RunStopped as stopped:
            if str(stopped):
                print(stopped, file=sys.stderr)
            raise SystemExit(stopped.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except SettingsError as error:
            print(error.report(), file=sys.stderr)
            raise SystemExit(USAGE_ERROR) from None
        except (BertError, OSError) as error:
            raise SystemExit(f"error: {error}") from None

    return main
