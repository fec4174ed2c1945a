"""`bert-prepare`: raw text to shards of tokens, and the vocabulary they are made with."""

import sys

from bert.settings import INTERRUPTED, read_settings
from training.command_line import run
from training.corpus.settings import PrepareSettings


def main() -> None:
    """Run from the command line."""
    run(_stoppable)


def _stoppable() -> None:
    try:
        _body()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def _body() -> None:
    settings = read_settings(PrepareSettings)
    from training.corpus.prepare import prepare

    done = prepare(settings)
    if settings.vocab_only:
        print(f"vocabulary: {settings.output_dir / 'tokenizer.json'}", file=sys.stderr)
        return
    print(done.summary(), file=sys.stderr)
    if settings.held_out and not any(settings.output_dir.glob("held_out-*.tokens")):
        print(
            "warning: no document was held out: there are too few; a larger held_out helps", file=sys.stderr
        )
    print(f"corpus: {settings.output_dir}", file=sys.stderr)


if __name__ == "__main__":
    main()
