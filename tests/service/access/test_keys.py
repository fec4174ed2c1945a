"""The file of keys: what it may hold, and what is refused with the line and without the key."""

import hashlib
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from bert.errors import ConfigError
from service.access.keys import MAX_KEYS, digest_of, keys_of
from service.cli import main
from service.settings import ServeSettings
from tests.support.documents import ROOT, blocks

HASH = hashlib.sha256(b"correct-horse").hexdigest()


def settings(file: Path, content: str, **more: object) -> ServeSettings:
    file.write_text(content, encoding="utf-8")
    return ServeSettings(api_keys_file=file, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        f"web: {{key: correct-horse, models: [mood], share: 2}}\nbatch: {{key_sha256: {'ab' * 32}, admin: true}}\n",
        f'{{"web": {{"key_sha256": "{HASH}", "models": ["mood"], "share": 2}},\n'
        f' "batch": {{"key_sha256": "{"ab" * 32}", "admin": true}}}}',
    ],
)
def test_yaml_and_json_and_hashed_keys_are_read(tmp_path: Path, content: str) -> None:
    web, batch = keys_of(settings(tmp_path / "keys", content))
    assert (web.name, web.digest, web.rules.models, web.rules.share) == (
        "web",
        digest_of("correct-horse"),
        ["mood"],
        2,
    )
    assert (batch.name, batch.digest, batch.rules.models, batch.rules.admin) == (
        "batch",
        bytes.fromhex("ab" * 32),
        None,
        True,
    )


def test_the_single_key_is_called_default(tmp_path: Path) -> None:
    both = settings(tmp_path / "keys", "web: {key: correct-horse}", api_key=SecretStr("battery-staple"))
    assert [key.name for key in keys_of(both)] == ["default", "web"]
    assert [key.name for key in keys_of(ServeSettings(api_key=SecretStr("battery-staple")))] == ["default"]
    assert keys_of(ServeSettings()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("web: {key: secret-horse", "line 1: "),
        ("a: {key: secret-horse}\nb: [secret-horse\nc: 1", "line 3: "),
        ("web: {key: 2026-13-45}", "is not YAML or JSON in UTF-8"),
        ("? [secret-horse]\n: {}", "line 1: found unhashable key"),
        ("[" * 5000, "is not YAML or JSON in UTF-8"),
        ("- secret-horse", "must hold names of keys"),
        ("web: secret-horse", "web must be a group, as in web: {key: ...}"),
        ("web: {key: horse}", "web: key: must have at least 8 characters, not 5"),
        ("web: {key: secret horse}", "web: key: may hold letters, digits and punctuation of ASCII only"),
        ("web: {key_sha256: secret-horse}", "web: key_sha256: must be 64 digits of lower-case hex"),
        ("web: {key: 12345678}", "web: key: input should be a valid string"),
        ("web: {models: [mood]}", "needs either key or key_sha256"),
        (f"web: {{key: secret-horse, key_sha256: {HASH}}}", "needs either key or key_sha256"),
        (
            "web: {key: secret-horse, requests_per_second: 0}",
            "web: requests_per_second: input should be greater than 0",
        ),
        (
            "web: {key: secret-horse, modells: [a]}",
            "web: modells: there is no such setting; did you mean models?",
        ),
        ("web: {key: secret-horse}\nshop: {key: secret-horse}", "web and shop have the same key"),
        (
            "web: {key: secret-horse}\nshop: {key: b-horse-b}\nweb: {key: c-horse-c}",
            "line 3: a name that is there twice",
        ),
        ("web: {key: secret-horse, key: b-horse-b}", "line 1: a name that is there twice"),
        ("? [secret-horse]\n: {}", "line 1: found unhashable key"),
        ("[" * 5000, "is not YAML or JSON"),
        ("# secret-horse\n" * 100_000, "it has 1,500,000 bytes, and at most 1,048,576 are read"),
        ("ä: {key: secret-horse}", "a name may hold letters, digits and ._@- of ASCII only, at most 64"),
        ("{}", f"has 0 keys; it may have 1 to {MAX_KEYS}"),
        ("\n".join(f"k{n}: {{key: key-no-{n:05}}}" for n in range(MAX_KEYS + 1)), f"has {MAX_KEYS + 1} keys"),
        ("web: {key: battery-staple}", "which is that of the setting api_key"),
        ("default: {key: secret-horse}", "which is that of the setting api_key"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_without_the_key(
    tmp_path: Path, content: str, message: str
) -> None:
    wrong = settings(tmp_path / "keys", content, api_key=SecretStr("battery-staple"))
    with pytest.raises(ConfigError) as caught:
        keys_of(wrong)
    assert message in str(caught.value) and str(tmp_path / "keys") in str(caught.value)
    assert "horse" not in str(caught.value).replace("secret horse", "")


def test_a_pipe_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        keys_of(ServeSettings(api_keys_file=tmp_path / "keys"))


def test_a_wrong_file_ends_the_start_with_2(
    tmp_path: Path, bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    given = ["--bundles", str(bundles / "mood"), "--api-keys-file", str(file), "--log-level", "error"]
    assert main(given) == 2
    assert capsys.readouterr().err == f"bert-serve: api_keys_file {file}: No such file or directory\n"
    file.write_text("web: {}")
    assert main(given) == 2
    assert "web: needs either key or key_sha256" in capsys.readouterr().err
    if os.geteuid() != 0:
        file.chmod(0)
        assert main(given) == 2


def test_the_file_of_the_page_is_read(tmp_path: Path) -> None:
    example = next(block.text for block in blocks(ROOT / "docs/howto/keys.md") if block.language == "text")
    web, batch, operator = keys_of(settings(tmp_path / "keys.yaml", example))
    assert (web.rules.models, batch.rules.share, operator.rules.admin) == (["sentiment", "ner"], 0.5, True)
