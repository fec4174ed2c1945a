"""Log lines: for people, and one JSON object a line for collectors."""

import json
import logging
from pathlib import Path

import pytest

from service import logs
from tests.support.live import serving


def test_json_lines_hold_time_level_message_and_fields(
    restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "json")
    logs.LOGGER.info("a %s", "line", extra={"fields": {"request_id": "x1"}})
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["message"], entry["request_id"]) == ("info", "a line", "x1")
    assert entry["time"].endswith("+00:00")


def test_an_exception_is_one_json_line(restored: None, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise ValueError("broken")
    except ValueError:
        logs.LOGGER.exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: broken" in json.loads(line)["error"]


def test_text_lines_end_with_the_fields(restored: None, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text")
    logs.LOGGER.info("not shown")
    logs.LOGGER.warning("look", extra={"fields": {"request_id": "x1", "ms": 3}})
    assert capsys.readouterr().err.rstrip().endswith("WARNING look request_id=x1 ms=3")


def test_access_lines_name_the_request_and_never_its_text(
    bundles: Path, restored: None, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("bert_serve")
    logger.propagate = (
        caplog.handler not in logger.handlers
    )  # pytest attaches it to a logger that does not propagate
    with (
        caplog.at_level(logging.INFO, "bert_serve"),
        serving(bundles=[bundles / "mood"], access_log=True) as live,
    ):
        live.post("/classify", {"text": "secret film"}, x_request_id="job-1")
        live.post(
            "/classify",
            b'{"text": "a film"}\n{"text": 1}\n',
            content_type="application/x-ndjson",
            x_request_id="job-2",
        )
        live.get("/a%0A2026-11-21%20INFO%20forged%1B%5B2J" + "b" * 5000)
    line = next(record for record in caplog.records if record.getMessage() == "POST /classify")
    fields = line.__dict__["fields"]
    assert (fields["request_id"], fields["status"], fields["model"]) == ("job-1", 200, "mood")
    assert "secret" not in caplog.text
    (lines,) = (r.__dict__["fields"] for r in caplog.records if "lines" in r.__dict__.get("fields", {}))
    assert (lines["request_id"], lines["status"], lines["lines"]) == ("job-2", 200, 2)
    (odd,) = (r.getMessage() for r in caplog.records if r.getMessage().startswith("GET /a"))
    assert odd.startswith("GET /a%0A2026-11-21%20INFO%20forged%1B%5B2Jb")
    assert odd.isprintable() and len(odd) < 300
