"""`bert-predict`: a file through a model, resumed after a kill.

What takes long to import is imported inside functions: --help and wrong settings need none of it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from service.system import FAILURE, exit_on_stop, handled

if TYPE_CHECKING:
    from service.bulk.files import Files
    from service.bulk.settings import PredictSettings

SOME_BAD = 3
"""Exit code of a run that went through with bad rows."""


class _Stop:
    """Signal handler: the first signal is noted, the second one ends the process at once."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns 0 if all rows went through, 3 if some were bad, 1 after an error, 2 if nothing was done (a wrong
    setting, column, bundle or input), and after a signal 128 and its number.
    """
    from bert.errors import BertError
    from bert.settings import INTERRUPTED, USAGE_ERROR, SettingsError, read_settings
    from service.bulk.files import Files
    from service.bulk.settings import PredictSettings

    files: Files | None = None
    try:
        with exit_on_stop(INTERRUPTED):
            settings = read_settings(PredictSettings, arguments)
            bundle, source = _paths(settings)
            files = Files(settings, source)
        return _predict(settings, bundle, files)
    except SettingsError as error:
        print(error.report(), file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads: Python must not try again at its end
        print("bert-predict: nobody reads standard output any more", file=sys.stderr)
    except OSError as error:
        advice = (
            ": the same command goes on from the last record"
            if files is not None and files.has_record
            else ""
        )
        print(f"bert-predict: {error}{advice}", file=sys.stderr)
    except BertError as error:
        print(f"bert-predict: {error}", file=sys.stderr)
        return FAILURE if files is not None and files.is_open else USAGE_ERROR
    return FAILURE


def _predict(settings: "PredictSettings", bundle: Path, files: "Files") -> int:
    """Predict the input; returns the exit code. Raises BertError and OSError."""
    from bert.settings import INTERRUPTED
    from service import logs
    from service.bulk.predictor import Predictor
    from service.bulk.report import Report
    from service.bulk.run import Run

    logs.configure("warning", "text")
    report, stop = Report(is_quiet=settings.quiet), _Stop()
    with exit_on_stop(INTERRUPTED):
        predictor = Predictor(
            bundle,
            columns=settings.columns,
            engine_slots=settings.engine_slots,
            engine_threads_per_slot=settings.engine_threads_per_slot,
            batch_tokens=settings.batch_tokens,
            verify_hashes=settings.verify_hashes,
            **settings.options,
        )
    with predictor, closing(files), handled(stop):
        is_complete = Run(settings, predictor, files, report, lambda: bool(stop.number)).run()
    rows, bad = files.progress.rows, files.progress.bad
    if not is_complete:
        name = signal.Signals(stop.number).name
        how = "" if settings.out == "-" else ": the same command goes on from there"
        report.say(f"stopped by {name} after {rows:,} rows{how}", always=True)
        return 128 + stop.number
    if bad and files.bad_name is not None:
        report.say(f"bad rows with their reasons: {files.bad_name}", always=True)
    return SOME_BAD if bad else 0


def _paths(settings: "PredictSettings") -> tuple[Path, str]:
    """Return the bundle's folder and the input. Raises BertError."""
    from bert.errors import ConfigError

    wanted = 2 if settings.model is None else 1
    if len(settings.paths) != wanted:
        what = "a bundle's folder and the input" if wanted == 2 else "the input alone, beside --model"
        raise ConfigError(f"{' '.join(settings.paths) or 'no arguments'}: give {what}")
    if settings.model is None:
        return Path(settings.paths[0]), settings.paths[1]
    from service.exports.prepare import prepare
    from service.settings import ServeSettings

    wish = ServeSettings(model=[settings.model], model_precision=settings.model_precision, strict=True)
    return prepare(wish).bundles[-1], settings.paths[0]


if __name__ == "__main__":
    sys.exit(main())
