"""Settings.

One way for command line, environment and file; each documented; broken ones refused in a line.
"""

from pathlib import Path

import pytest

from bert.settings import SettingsError, read_settings
from service.cli import main
from service.settings import WIRES, ServeSettings, unknown_variables

ROOT = Path(__file__).parents[2]
UNITS = (
    "_share",
    "frontends",
    "_bytes",
    "_tokens",
    "_ms",
    "_s",
    "_connections",
    "_generations",
    "_threads",
    "_per_slot",
    "_per_request",
    "_slots",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServeSettings.model_fields:
        monkeypatch.delenv(f"BERT_SERVE_{name.upper()}", raising=False)


def write(tmp_path: Path, content: str) -> str:
    file = tmp_path / "serve.yaml"
    file.write_text(content, encoding="utf-8")
    return str(file)


def test_every_setting_says_what_it_means() -> None:
    for name, field in ServeSettings.model_fields.items():
        assert field.description and field.description.endswith("."), name


def test_every_number_has_its_unit_in_its_name() -> None:
    for name, field in ServeSettings.model_fields.items():
        if field.annotation in (int, float, int | None) and not name.endswith("port"):
            assert name.endswith(UNITS), name


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "port: 1\nmax_body_bytes: 10\nlog_level: debug\nbundles: [a, b]\n")
    monkeypatch.setenv("BERT_SERVE_PORT", "2")
    monkeypatch.setenv("BERT_SERVE_MAX_BODY_BYTES", "20")
    chosen = read_settings(ServeSettings, ["--config", file, "--port", "3"])
    assert (chosen.port, chosen.max_body_bytes, chosen.log_level) == (3, 20, "debug")
    assert chosen.bundles == [Path("a"), Path("b")]


def test_lists_and_pairs_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_SERVE_DEFAULT_MODELS", "ner=names,qa=reader")
    chosen = read_settings(ServeSettings, ["--bundles", "a,b", "--bundles", "c"])
    assert chosen.bundles == [Path("a"), Path("b"), Path("c")]
    assert chosen.default_models == {"ner": "names", "qa": "reader"}


def test_none_leaves_a_setting_to_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_SERVE_ENGINE_SLOTS", "none")
    chosen = read_settings(
        ServeSettings, ["--config", write(tmp_path, "batch_tokens: null\nengine_slots: 3\n")]
    )
    assert chosen.engine_slots is None
    assert chosen.batch_tokens is None


def test_switches_have_both_forms() -> None:
    assert read_settings(ServeSettings, ["--no-verify-hashes", "--access-log"]).verify_hashes is False
    assert read_settings(ServeSettings, ["--access-log"]).access_log is True


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "70000"], "port: input should be less than or equal to 65535 (given: '70000')"),
        (["--port", "x"], "port: input should be a valid integer"),
        (["--max-body-bytes", "0"], "max_body_bytes: input should be greater than or equal to 1"),
        (
            ["--max-bodies-bytes", "4000000"],
            "max_bodies_bytes (4000000) must be at least 2 × max_body_bytes (2097152)",
        ),
        (["--log-level", "loud"], "loud"),
        (["--no-such-thing", "1"], "unrecognized arguments: --no-such-thing"),
        (["--max-body-byte", "1"], "--max-body-byte 1; did you mean --max-body-bytes?"),
        (["--default-models", "poetry=x"], "default_models: no such task: poetry; known are classification"),
        (["--default-models", "ner"], "default_models: write task=name, separated by commas"),
        (["--drain-s", "inf"], "drain_s: input should be a finite number (given: 'inf')"),
        (["--drain-s", "nan"], "drain_s: input should be a finite number (given: 'nan')"),
        (["--drain-s", "1e9"], "drain_s: input should be less than or equal to 3600"),
        (["--shutdown-grace-s", "99999999"], "shutdown_grace_s: input should be less than or equal to 3600"),
        (
            ["--request-timeout-ms", "99999999999"],
            "request_timeout_ms: input should be less than or equal to",
        ),
        (
            ["--backlog-connections", "99999999999"],
            "backlog_connections: input should be less than or equal to",
        ),
        (
            ["--api-key", "gr\u00fc\u00dfe-an-alle"],
            "api_key: may hold letters, digits and punctuation of ASCII only",
        ),
        (["--api-key", "correct horse"], "api_key: may hold"),
        (["--api-key", "key-one,key-two"], "several keys go into a file (api_keys_file)"),
        (
            ["--forwarded-allow-ips", "*"],
            "forwarded_allow_ips: '*' does not appear to be an IPv4 or IPv6 network",
        ),
        (["--root-path", "bert/"], "root_path: String should match pattern"),
        (["--uds-mode", "rw"], "uds_mode: String should match pattern"),
        (["--ssl-keyfile", "key.pem"], "ssl_keyfile needs ssl_certfile"),
        (["--sample-share", "0.1"], "sample_share (0.1) needs sample_dir"),
        (["--sample-share", "2"], "sample_share: input should be less than or equal to 1"),
        (["--admin-port", "8000"], "admin_port (8000) must not be port"),
        (["--api-key", "geheim"], "api_key: must have at least 8 characters, not 6"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: No such file or directory"),
    ],
)
def test_a_broken_setting_is_refused_in_a_line_with_exit_code_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    first, *_, last = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("bert-serve: ") and line in first
    assert "--help" in last


@pytest.mark.parametrize("content", ["- a\n", "port: [\n", "prot: 1\n", "port: eighty\n"])
def test_a_broken_file_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(SettingsError):
        read_settings(ServeSettings, ["--config", write(tmp_path, content)])


def test_a_refused_key_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--api-key", "short"]) == 2
    assert "short'" not in capsys.readouterr().err


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in shown for name in ServeSettings.model_fields)
    assert "--config" in shown


def test_variables_that_look_like_settings_are_noticed() -> None:
    found = unknown_variables(["BERT_SERVE_PROT", "BERT_SERVE_PORT", "bert_serve_host", "PATH"])
    assert found == ["BERT_SERVE_PROT"]


def test_wires_are_all_on_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(ServeSettings().has_wire(name) for name in WIRES)
    some = read_settings(ServeSettings, ["--wires", "openai, tei"])
    assert [name for name in WIRES if some.has_wire(name)] == ["openai", "tei"]
    assert not any(read_settings(ServeSettings, ["--wires", "none"]).has_wire(name) for name in WIRES)
    monkeypatch.setenv("BERT_SERVE_WIRES", "none")
    assert not any(read_settings(ServeSettings, []).has_wire(name) for name in WIRES)
    monkeypatch.delenv("BERT_SERVE_WIRES")
    file = tmp_path / "serve.yaml"
    for line, expected in (("wires: none", []), ("wires: [oip]", ["oip"]), ("wires: all", list(WIRES))):
        file.write_text(line)
        found = read_settings(ServeSettings, ["--config", str(file)])
        assert [name for name in WIRES if found.has_wire(name)] == expected
    with pytest.raises(SettingsError, match="no such wire: grpc; known are openai"):
        read_settings(ServeSettings, ["--wires", "openai,grpc"])
