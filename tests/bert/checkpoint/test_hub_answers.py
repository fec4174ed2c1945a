"""Hubs that do not answer, or answer what no hub would: each ends in one sentence, and nothing is written elsewhere."""

import json
import time
from pathlib import Path

import pytest

from bert.checkpoint import hub_answers
from tests.support.hub_process import resolve
from tests.support.local_hub import Instead, LocalHub, commit_of

INFO, TREE, WEIGHTS, CONFIG = "/revision/main", "/tree/", "/model.safetensors", "/config.json"


def test_a_hub_that_does_not_answer_is_given_up(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path
) -> None:
    hub.instead = {INFO: Instead(pause_s=200)}
    start = time.monotonic()
    folder, said = resolve("org/tiny", variables)
    assert not folder and f"{hub.url} does not answer (" in said
    assert time.monotonic() - start < 100
    hub.instead = {}
    folder, _ = resolve("org/tiny", variables)
    hub.instead = {INFO: Instead(pause_s=60)}
    again, said = resolve("org/tiny", variables)
    assert again == folder and "Using cached commit hash" in said


def entry(**values: object) -> dict[str, object]:
    return {"type": "file", "path": "config.json", "oid": "a" * 40, "size": 5, **values}


@pytest.mark.parametrize(
    "content", [[], 1, {}, {"sha": None}, {"sha": 5}, {"sha": "../../PWN"}, {"sha": "a" * 39}]
)
def test_what_describes_no_model(content: object) -> None:
    assert not hub_answers._is_revision(content)
    assert hub_answers._is_revision({"sha": "a" * 40})


@pytest.mark.parametrize(
    "wrong",
    [
        1,
        {},
        entry(size=-5),
        entry(size="x"),
        entry(oid="../x"),
        entry(path=None),
        entry(lfs=1),
        entry(lfs={"oid": "../x", "size": 5, "pointerSize": 1}),
        {"type": "file", "path": "config.json", "oid": "a" * 40},
    ],
)
def test_what_lists_no_files(wrong: object) -> None:
    lfs = entry(lfs={"oid": "a" * 64, "size": 5, "pointerSize": 1})
    right = [entry(), lfs, {"type": "directory", "path": "onnx", "oid": "a" * 40}]
    assert hub_answers._is_tree(right) and not hub_answers._is_tree([*right, wrong])
    assert not hub_answers._is_tree({})


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (INFO, b"<html>sign in</html>"),
        (INFO, b'{"sha": "../../../../PWN"}'),
        (INFO, b'{"a":' * 50_000),
        (TREE, json.dumps([entry(size="x")]).encode()),
    ],
)
def test_json_of_another_form_is_refused_with_a_sentence(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path, path: str, content: bytes
) -> None:
    if path == TREE:
        path += commit_of(checkpoint)
    hub.instead = {path: Instead(content)}
    folder, said = resolve("org/tiny", variables)
    assert not folder and said.startswith(f"the hub at {hub.url} answered with something that is not "), said
    assert "check HF_ENDPOINT, and whether a proxy" in said
    hub.instead = {}
    assert resolve("org/tiny", variables)[0]  # nothing of it was kept


@pytest.mark.parametrize("headers", [{"ETag": '"../../../../PWN"'}, {"X-Repo-Commit": "b" * 40}])
def test_headers_cannot_lead_out_of_the_cache(
    hub: LocalHub, variables: dict[str, str], tmp_path: Path, headers: dict[str, str]
) -> None:
    hub.instead = {WEIGHTS: Instead(headers=headers)}
    folder, said = resolve("org/tiny", variables)
    assert not folder and f"the hub at {hub.url} answered with something that is not " in said
    assert not [found for found in tmp_path.rglob("*") if found.name.startswith(("PWN", "b" * 40))]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        (
            INFO,
            301,
            "answered with something that is not the answer of a hub (Exceeded maximum allowed redirects.)",
        ),
        (INFO, 403, "set HF_TOKEN to a token of an account that may read it (none is set)"),
        (INFO, 429, "try again later"),
        (WEIGHTS, 403, "set HF_TOKEN to a token of an account that may read it (none is set)"),
        (WEIGHTS, 404, "lists a file of org/tiny that it does not have (/org/tiny/resolve/"),
    ],
)
def test_a_refusal_is_told_with_its_cause(
    hub: LocalHub, variables: dict[str, str], path: str, status: int, reason: str
) -> None:
    hub.instead = {path: Instead(status=status)}
    folder, said = resolve("org/tiny", variables)
    assert not folder and reason in said and "cut off" not in said, said


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "config.json"])
def test_other_content_of_the_same_size_is_refused_and_not_kept(
    hub: LocalHub, variables: dict[str, str], checkpoint: Path, name: str
) -> None:
    hub.instead = {f"/{name}": Instead(bytes((checkpoint / name).stat().st_size), method="GET")}
    folder, said = resolve("org/tiny", variables)
    assert not folder and f"{name} of org/tiny came with other content than {hub.url} lists" in said
    hub.instead = {}
    folder, _ = resolve("org/tiny", variables)
    assert (Path(folder) / name).read_bytes() == (checkpoint / name).read_bytes()
