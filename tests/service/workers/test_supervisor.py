"""A child process is told all that its parent knows."""

import io
from pathlib import Path

from pydantic import SecretStr

from service.engine.bundle_folders import FoundBundle
from service.settings import ServeSettings
from service.workers.start import StartMessage


def test_a_child_gets_all_settings_of_its_parent(tmp_path: Path) -> None:
    settings = ServeSettings(
        bundles=[tmp_path], port=81, api_key=SecretStr("a-long-secret"), default_models={"ner": "names"}
    )
    settings = settings.with_exports(
        [tmp_path], {"mood": "it cannot be had"}, {tmp_path: tmp_path / "better"}
    )
    found = {tmp_path: FoundBundle("names", "ner")}
    sent = StartMessage(
        settings, found, tmp_path, "frontend-1", [5], 7, restarts=2, announces=True, is_successor=True
    )
    stream = io.BytesIO()
    sent.write(stream)
    stream.seek(0)
    got = StartMessage.read(stream)
    assert got == sent and got.settings.failed_models == {"mood": "it cannot be had"}
    assert got.settings.better_bundles == {tmp_path: tmp_path / "better"}
