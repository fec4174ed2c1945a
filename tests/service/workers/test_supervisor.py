"""A child process is told all that its parent knows."""

from pathlib import Path

from pydantic import SecretStr

from service.settings import ServeSettings
from service.workers.supervisor import StartMessage


def test_a_child_gets_all_settings_of_its_parent(tmp_path: Path) -> None:
    settings = ServeSettings(
        bundles=[tmp_path], port=81, api_key=SecretStr("a-long-secret"), default_models={"ner": "names"}
    )
    sent = StartMessage(
        settings, str(tmp_path), "frontend-1", 5, 7, restarts=2, announces=True, is_successor=True
    )
    line = sent.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert StartMessage.from_line(line) == sent
