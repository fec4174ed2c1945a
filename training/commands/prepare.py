"""`bert-prepare`: raw text to shards of tokens, and the vocabulary they are made with."""

import signal
import sys

from bert.settings import read_settings
from training.command_line import command
from training.corpus.settings import PrepareSettings
from training.engine.signals import RunStopped


@command
def main() -> None:
    """Run from the command line."""
    settings = read_settings(PrepareSettings)
    from training.corpus.prepare import prepare

    try:
        done = prepare(settings)
    except KeyboardInterrupt:
        raise RunStopped("stopped; the same command goes on from here", signal.SIGINT) from None
    if settings.vocab_only:
        print(f"vocabulary: {settings.output_dir / 'tokenizer.json'}", file=sys.stderr)
        return
    if not settings.merge:
        print(done.summary(), file=sys.stderr)
    if settings.part:
        print(f"part {settings.part} is finished", file=sys.stderr)
        return
    if settings.held_out and not any(settings.output_dir.glob("held_out-*.tokens")):
        print(
            "warning: no document was held out: there are too few; a larger held_out helps", file=sys.stderr
        )
    print(f"corpus: {settings.output_dir}", file=sys.stderr)


if __name__ == "__main__":
    main()
