"""Entry point of `bert-export`: the imports take a third of a second, in which a signal has to end it too."""

import os
import signal
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command; returns its exit code."""
    before = signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    from model_export.cli import main as export

    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C does: what is half made goes
    return export()


def _end(*_: object) -> None:
    # An exception during an import might be taken for a failed import.
    os.write(2, b"bert-export: interrupted; nothing was begun\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
