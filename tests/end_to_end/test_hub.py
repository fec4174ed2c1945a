"""From a name on the hub to an answer, and to a fine-tuned adapter, over a hub on this machine."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import MANIFEST, read_bundle
from tests.support.checkpoints import SPECS
from tests.support.families import write_relative
from tests.support.hub_process import hub_variables, start
from tests.support.live import Client, eventually
from tests.support.local_hub import LocalHub, commit_of, local_hub
from tests.support.process import Process, address, children, started

NAMES = ("--model", "org/tiny-classifier", "--model", "org/tiny-ner", "--model-precision", "fp32")
SENTENCE = {"text": "Angela Merkel met engineers in Munich."}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    write_relative(folder / "tiny-classifier", "distilbert", SPECS["classification"])
    write_relative(folder / "tiny-ner", "roberta", SPECS["ner"])
    write_relative(folder / "tiny-base", "distilbert", SPECS["similarity"])
    return folder


@pytest.fixture
def hub(checkpoints: Path) -> Iterator[LocalHub]:
    with local_hub() as running:
        for folder in checkpoints.iterdir():
            running.add(f"org/{folder.name}", folder)
        yield running


@pytest.fixture
def variables(hub: LocalHub, tmp_path: Path) -> dict[str, str]:
    return hub_variables(hub, tmp_path / "home", XDG_CACHE_HOME=str(tmp_path / "cache"))


def bundles(variables: dict[str, str]) -> list[Path]:
    return list(Path(variables["XDG_CACHE_HOME"]).rglob(MANIFEST))


def stop(process: Process) -> str:
    """Stop a service; return what it said on standard error."""
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(120) == 0
    return process.error()


def ask(process: Process) -> tuple[Client, list[Any]]:
    """Return a client of a service that is ready, and its answers to a sentence."""
    client = Client(address(process.until("Ready at")))
    replies = [
        client.post(path, {**SENTENCE, "model": model})
        for path, model in (("/classify", "tiny-classifier"), ("/ner", "tiny-ner"))
    ]
    assert [reply.status for reply in replies] == [200, 200]
    return client, [reply.json["results"] for reply in replies]


@pytest.mark.slow
def test_models_are_served_by_name_and_again_without_the_hub(
    hub: LocalHub, variables: dict[str, str]
) -> None:
    with started(*NAMES, "--model", "org/none", **variables) as process:
        client, first = ask(process)
        (left_out,) = client.get("/models").json["left_out"]
        assert left_out["name"] == "none" and "no model org/none at" in left_out["reason"]
        assert client.post("/classify", {**SENTENCE, "model": "none"}).status == 503
        assert 'bert_model_left_out{model="none"' in client.get("/metrics").body.decode()
        said = stop(process)
    assert said.count("comparing 60 texts with the checkpoint") == 2
    hub.requests.clear()
    with started(*NAMES, **{**variables, "HF_ENDPOINT": "http://127.0.0.1:1"}) as process:
        assert ask(process)[1] == first
        said = stop(process)
    assert "export" not in said and hub.requests == []


@pytest.mark.slow
def test_a_stop_during_a_download_is_prompt_and_leaves_nothing_half(
    hub: LocalHub, variables: dict[str, str]
) -> None:
    hub.pause_s = 60
    with started(*NAMES, **variables) as process:
        eventually(lambda: bool(hub.asked("GET /org/tiny-classifier/resolve")))
        (child,) = children(process.popen.pid)
        began = time.monotonic()
        stop(process)
        assert time.monotonic() - began < 40, "of the minute for which the hub is silent"
        assert not Path(f"/proc/{child}").exists()
    hub.pause_s = 0
    assert bundles(variables) == []
    assert list(Path(variables["HF_HOME"]).rglob("*.incomplete")) == []


@pytest.mark.slow
def test_a_start_after_a_kill_exports_anew(hub: LocalHub, variables: dict[str, str]) -> None:
    hub.pause_s = 2
    with started(*NAMES, **variables) as process:
        eventually(lambda: bool(hub.asked("GET /org/tiny-classifier/resolve")))
        os.kill(process.popen.pid, signal.SIGKILL)
        process.popen.wait(120)
    hub.pause_s = 0
    with started(*NAMES, **variables) as process:
        ask(process)
        stop(process)
    assert len(bundles(variables)) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["org/none"], 1, "bert-serve: there is no folder org/none here, and no model org/none at"),
        (["org/tiny-ner", "org/none", "--strict"], 1, "no model org/none at"),
        (["a/ner", "b/ner"], 2, "model: a/ner and b/ner would both be called 'ner'"),
    ],
)
def test_a_start_that_cannot_serve_what_it_should_fails(
    hub: LocalHub, variables: dict[str, str], arguments: list[str], code: int, line: str
) -> None:
    models = [f"--model={name}" if not name.startswith("--") else name for name in arguments]
    process = start(["-m", "service.cli", "--port", "0", "--model-precision", "fp32", *models], variables)
    output, error = process.communicate(timeout=300)
    assert process.returncode == code and line in error and "Ready" not in output, error


@pytest.mark.slow
def test_a_log_of_json_has_the_progress_too(hub: LocalHub, variables: dict[str, str]) -> None:
    with started("--model=org/none", "--log-format=json", **variables) as process:
        assert process.popen.wait(120) == 1
        *lines, last = process.error().strip().splitlines()
    assert any("no model org/none at" in json.loads(line)["message"] for line in lines)
    assert json.loads(last)["message"].startswith("bert-serve ends: ")


@pytest.mark.slow
def test_an_adapter_names_its_base_on_the_hub(
    hub: LocalHub, variables: dict[str, str], checkpoints: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "good news\tgood\nbad news\tbad\n" * 8)
    arguments = [
        "--base=org/tiny-base", "--task=classification", f"--train={tmp_path}/train.tsv", f"--dev={tmp_path}/train.tsv",
        f"--output-dir={tmp_path}/run", "--max-steps=2", "--max-tokens=16", '--lora={"rank": 2}',
    ]  # fmt: skip
    training = start(["-m", "training.commands.finetune", *arguments], variables)
    _, error = training.communicate(timeout=300)
    assert training.returncode == 0, error
    best, commit = tmp_path / "run/best", commit_of(checkpoints / "tiny-base")
    base = json.loads((best / "task.json").read_text())["base"]
    assert (base["name"], base["commit"], len(base["sha256"])) == ("org/tiny-base", commit, 64)
    adapter = json.loads((best / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("org/tiny-base", commit)
    hub.requests.clear()
    options = [f"--checkpoint={best}", f"--out={tmp_path}/bundle", "--precision=fp32"]
    export = start(["-m", "model_export.cli", *options], variables)
    _, error = export.communicate(timeout=300)
    assert export.returncode == 0, error
    assert hub.requests == []  # the commit is known, and its files are in the cache
    recorded = read_bundle(tmp_path / "bundle").manifest.source["base"]
    assert recorded["hub"] == {"repo": "org/tiny-base", "commit": commit}
