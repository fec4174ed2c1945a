"""Exit codes of this package's commands, and settings that older versions saved."""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from bert.errors import BertError
from bert.settings import INTERRUPTED, USAGE_ERROR, SettingsError
from training.core.signals import RunStopped


def fill_in(kind: type[BaseSettings], saved: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return saved settings as this version of `kind` writes them, with defaults for what the save lacks.

    `others` are settings that `kind` requires and a save has not.
    """
    fields = kind.model_fields
    # Each is given, as the class would look for others in the environment.
    given = {
        name: f.get_default(call_default_factory=True) for name, f in fields.items() if not f.is_required()
    }
    given |= others | {name: value for name, value in saved.items() if name in fields}
    try:
        filled = kind.model_validate(given)
    except ValidationError:
        return dict(saved)
    return {**saved, **filled.model_dump(mode="json")}


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
