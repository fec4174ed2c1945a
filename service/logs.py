"""Log lines: text for people or JSON for collectors, with the request id where there is one."""

import json
import logging
import signal
import sys
from datetime import UTC, datetime

LOGGER = logging.getLogger("bert_serve")


class JsonFormatter(logging.Formatter):
    """One JSON object per line, merged with the fields passed as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, message, then the fields as key=value; a trace follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a trace."""
        fields = "".join(f" {key}={value}" for key, value in getattr(record, "fields", {}).items())
        return super().formatMessage(record) + fields


def report_fatal(program: str, error: Exception) -> None:
    """Write the error that ends a program to standard error: for people, or as a JSON line if the log has those."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in LOGGER.handlers):
        LOGGER.critical("%s ends: %s", program, error)
    else:
        print(f"{program}: {error}", file=sys.stderr)


def log_signal(number: int) -> None:
    """Log a signal that stops the service."""
    LOGGER.info("%s: the service stops", signal.Signals(number).name)


def configure(level: str, form: str) -> None:
    """Send this program's log lines, and uvicorn's warnings, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if form == "json" else TextFormatter("%(asctime)s %(levelname)-7s %(message)s")
    )
    for name, lowest in (("bert_serve", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
