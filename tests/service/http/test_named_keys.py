"""Named keys over a real socket: who may, how much, and what an operator sees of it."""

import http.client
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.http.authorise import LOOK_EVERY_S, MAX_ADDRESSES, WRONG_KEYS, WRONG_WITHIN_S, WrongKeys
from tests.support.live import Client, Live, eventually, serving
from tests.support.problems import TEXT, kind, rejected
from tests.support.process import address, started
from tests.support.slow import gated

WEB, BATCH, SHOP = ({"x_api_key": f"{name}-key-1"} for name in ("web", "batch", "shop"))
KEYS: dict[str, dict[str, Any]] = {
    "web": {"key": "web-key-1", "models": ["mood"]},
    "batch": {"key": "batch-key-1", "requests_per_second": 0.5, "tokens_per_second": 1},
    "shop": {"key": "shop-key-1", "concurrency": 1},
}


def write(file: Path, keys: dict[str, dict[str, Any]]) -> None:
    """Replace a file as a mounted Secret is: a link that is moved."""
    new = file.with_name(f"{file.name}.{time.monotonic_ns()}")
    new.write_text(json.dumps(keys))
    link = file.with_name("link")
    link.symlink_to(new)
    link.replace(file)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    write(tmp_path / "keys.json", KEYS)
    return tmp_path / "keys.json"


@pytest.fixture
def named(bundles: Path, keys_file: Path) -> Iterator[Live]:
    with serving(
        bundles=[bundles], default_models={"classification": "mood"}, api_keys_file=keys_file
    ) as live:
        yield live


def test_a_key_has_its_models_and_is_counted_by_its_name(named: Live) -> None:
    assert named.post("/classify", TEXT).status == 401
    assert named.post("/classify", TEXT, **WEB).status == 200
    assert named.get("/models", **WEB).status == 200
    for path, body in (
        ("/classify", TEXT | {"model": "topics"}),
        ("/ner", TEXT),
        ("/v1/embeddings", {"model": "meaning", "input": "a film"}),
        (
            "/v2/models/names/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]},
        ),
    ):
        reply = named.post(path, body, **WEB)
        assert reply.status == 403 and b"the key 'web' may not use the model" in reply.body, path
    lines = b'{"text": "a film"}\n{"text": "a film", "model": "topics"}\n'
    first, second = named.post(
        "/classify", lines, content_type="application/x-ndjson", **WEB
    ).body.splitlines()
    assert b"results" in first and b"forbidden" in second
    assert named.settled_metric("bert_requests_by_key_total", key="web", status="200") == 3
    assert named.metric("bert_requests_by_key_total", key="web", status="403") == 5
    assert named.metric("bert_tokens_by_key_total", key="web") == 10
    assert rejected(named, "forbidden") == 5


def test_a_key_that_has_used_its_requests_is_told_when_to_come_again(named: Live) -> None:
    first = named.get("/models", **BATCH)
    assert (first.status, first.headers["ratelimit-limit"], first.headers["ratelimit-remaining"]) == (
        200,
        "1",
        "0",
    )
    reply = named.get("/models", **BATCH)
    assert (reply.status, kind(reply)) == (429, "rate-limited")
    assert 1 <= int(reply.headers["retry-after"]) <= 5
    assert (reply.headers["ratelimit-limit"], reply.headers["ratelimit-remaining"]) == ("1", "0")
    assert named.post("/classify", TEXT, **WEB).status == 200, "another key has its own"
    assert rejected(named, "rate_limited") == 1
    eventually(lambda: named.get("/models", **BATCH).status == 200)


def test_tokens_are_counted_once_they_are_known(bundles: Path, keys_file: Path) -> None:
    write(keys_file, {"batch": {"key": "batch-key-1", "tokens_per_second": 0.5}})
    with serving(bundles=[bundles / "mood"], api_keys_file=keys_file) as live:
        assert live.post("/classify", TEXT, **BATCH).status == 200
        reply = live.post("/classify", TEXT, **BATCH)
        assert (reply.status, kind(reply)) == (429, "rate-limited")
        assert 1 <= int(reply.headers["retry-after"]) <= 12
        assert live.post("/tokenize", TEXT, **BATCH).status == 200, "nothing runs"


def test_lines_wait_for_the_tokens_of_their_key(bundles: Path, keys_file: Path) -> None:
    write(keys_file, {"batch": {"key": "batch-key-1", "tokens_per_second": 20}})
    with serving(bundles=[bundles / "mood"], api_keys_file=keys_file) as live:
        began = time.monotonic()
        lines = (json.dumps(TEXT).encode() + b"\n") * 10
        reply = live.post("/classify", lines, content_type="application/x-ndjson", **BATCH)
        assert reply.body.count(b"results") == 10
        assert time.monotonic() - began > 1.5, "60 tokens, of which 20 at once"


def test_requests_of_a_key_in_progress_are_bounded(bundles: Path, keys_file: Path) -> None:
    with serving(bundles=[bundles / "mood"], api_keys_file=keys_file) as live, gated(live, "mood") as gate:
        statuses: list[int] = []
        ask = threading.Thread(target=lambda: statuses.append(live.post("/classify", TEXT, **SHOP).status))
        ask.start()
        eventually(lambda: live.metric("bert_requests_in_flight") == 1)
        reply = live.get("/models", **SHOP)
        assert (reply.status, kind(reply)) == (429, "rate-limited")
        gate.gate.set()
        ask.join(30)
        assert statuses == [200]
        eventually(lambda: live.get("/models", **SHOP).status == 200)


def test_a_key_that_floods_does_not_hold_up_another(
    bundles: Path, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(keys_file, {"batch": {"key": "batch-key-1"}, "web": {"key": "web-key-1"}})
    settings: dict[str, Any] = {"api_keys_file": keys_file, "engine_slots": 1, "batch_tokens": 32}
    with (
        serving(bundles=[bundles / "mood"], **settings) as live,
        gated(live, "mood") as engine,
        ThreadPoolExecutor(65) as pool,
    ):
        batches, run = list[list[int]](), engine.inner.run

        def recorded(encodings: Sequence[Encoding]) -> Outputs:
            batches.append([len(each) for each in encodings])
            return run(encodings)

        monkeypatch.setattr(engine.inner, "run", recorded)
        asked = [pool.submit(live.post, "/classify", TEXT, **BATCH) for _ in range(64)]
        eventually(lambda: len(live.scheduler._waiting) == 64)
        asked.append(pool.submit(live.post, "/classify", {"text": "a film"}, **WEB))
        eventually(lambda: len(live.scheduler._waiting) == 65)
        engine.gate.set()
        assert [future.result().status for future in asked] == [200] * 65
        (first,) = (number for number, lengths in enumerate(batches) if 4 in lengths)
        assert first == 1 and len(batches) > 12, "the first batch was in the engine before it came"


def test_a_key_that_fills_the_queue_is_refused_and_another_is_not(bundles: Path, keys_file: Path) -> None:
    write(keys_file, {"batch": {"key": "batch-key-1"}, "web": {"key": "web-key-1"}})
    settings: dict[str, Any] = {"api_keys_file": keys_file, "engine_slots": 1, "max_queue_tokens": 600}
    large = {"text": ["the film was warm and funny " * 4] * 8}  # 208 tokens
    with (
        serving(bundles=[bundles / "mood"], **settings) as live,
        gated(live, "mood") as engine,
        ThreadPoolExecutor(8) as pool,
    ):
        live.scheduler.queue.throughput[live.loaded.registry.models["mood"].id].tokens_per_s = 50.0
        asked = [pool.submit(live.post, "/classify", large, **BATCH) for _ in range(6)]
        eventually(lambda: any(future.done() for future in asked))
        for _ in range(2):
            reply = live.post("/classify", large, **BATCH)
            assert (reply.status, kind(reply)) == (429, "queue-full")
        other = pool.submit(live.post, "/classify", large, **WEB)
        eventually(
            lambda: any(
                lane.name == "web" and turns.tokens for lane, turns in live.scheduler.queue._lanes.items()
            )
        )
        engine.gate.set()
        assert other.result().status == 200
        assert {future.result().status for future in asked} == {200, 429}


def test_keys_are_read_again_and_a_wrong_file_leaves_those_before(
    named: Live, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def status_after(keys: dict[str, Any], key: dict[str, str]) -> int:
        """Change the file, if there are keys for it, and ask once the service has to look at it again."""
        if keys:
            write(keys_file, keys)
        time.sleep(LOOK_EVERY_S + 0.1)
        return named.get("/models", **key).status

    logging.getLogger("bert_serve").addHandler(caplog.handler)
    try:
        assert status_after({}, WEB) == 200
        assert status_after({"web": {"key": "web-key-2"}}, {"x_api_key": "web-key-2"}) == 200
        assert named.get("/models", **WEB).status == 401, "a key that is gone"
        assert status_after({"web": {"key": "short"}}, {"x_api_key": "web-key-2"}) == 200
        assert named.metric("bert_keys_file_error") == 1
        assert "web: key: must have at least 8 characters, not 5" in caplog.text
        keys_file.unlink()
        assert status_after({}, {"x_api_key": "web-key-2"}) == 200
        assert status_after(KEYS, WEB) == 200
        assert named.metric("bert_keys_file_error") == 0
    finally:
        logging.getLogger("bert_serve").removeHandler(caplog.handler)


def test_a_model_of_a_key_that_is_not_there_is_told_at_the_start_and_whenever_the_file_changes(
    bundles: Path, keys_file: Path
) -> None:
    write(keys_file, {"web": {"key": "web-key-1", "models": ["mood", "nosuch"]}})
    arguments = ["--bundles", str(bundles / "mood"), "--api-keys-file", str(keys_file), "--frontends", "1"]
    with started(*arguments) as process:
        client = Client(address(process.until("Ctrl-C stops it.")))
        assert client.post("/classify", TEXT, **WEB).status == 200
        write(keys_file, {"web": {"key": "web-key-1", "models": ["later"]}})
        eventually(lambda: client.post("/classify", TEXT, **WEB).status == 403)
        process.popen.terminate()
        assert process.popen.wait(120) == 0
        said = process.error()
    told = re.findall(
        r"WARNING +the key web may use the model (\w+), which this service does not have now", said
    )
    assert told == ["nosuch", "later"]


def test_wrong_keys_of_an_address_are_slowed_and_right_ones_are_not(named: Live) -> None:
    connection = http.client.HTTPConnection(*named.connect_to(), timeout=30)

    def ask(key: str) -> http.client.HTTPResponse:
        connection.request("GET", "/models", headers={"x-api-key": key} if key else {})
        response = connection.getresponse()
        response.read()
        return response

    assert [ask(f"wrong-key-{n}").status for n in range(WRONG_KEYS)] == [401] * WRONG_KEYS
    began = time.monotonic()
    slowed = [ask(f"wrong-key-{n}") for n in range(2)]
    assert time.monotonic() - began >= 2, "300 wrong keys took 0.17 s before"
    assert [each.status for each in slowed] == [429, 429]
    assert 1 <= int(slowed[0].headers["retry-after"]) <= 60
    assert ask("web-key-1").status == 200 and ask("").status == 401
    assert rejected(named, "wrong_keys") == 2
    connection.close()


def test_only_so_many_addresses_are_remembered() -> None:
    now = 0.0
    wrong = WrongKeys(lambda: now)
    assert [wrong.count("a") for _ in range(WRONG_KEYS)] == [0] * WRONG_KEYS
    assert wrong.count("a") == WRONG_WITHIN_S
    for n in range(2 * MAX_ADDRESSES):
        wrong.count(str(n))
    assert len(wrong._times) == MAX_ADDRESSES
    now = WRONG_WITHIN_S
    assert wrong.count("a") == 0


def test_operators_have_a_port_of_their_own(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], admin_port=0, api_key="correct-horse") as live:
        port = live.service.settings.admin_port
        assert port is not None and port != live.connect_to()[1]
        admin = type(live)(f"http://127.0.0.1:{port}", live.server, live.service)
        assert live.get("/metrics").status == 404 and b"admin_port" in live.get("/metrics").body
        assert b"bert_ready 1.0" in admin.get("/metrics").body
        for path in ("/metrics", "/models/mood/load", "/v2/repository/index"):
            hidden = {
                live.request(method, path).status for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS")
            }
            assert hidden == {404}, "no method tells more than another"
        for path in ("/health/live", "/health/ready", "/v2/health/ready"):
            assert live.get(path).status == admin.get(path).status == 200
        assert admin.get("/models").status == 401
        assert live.post("/classify", TEXT, x_api_key="correct-horse").status == 200


def test_keys_with_admin_change_models_and_others_do_not(bundles: Path, keys_file: Path) -> None:
    write(keys_file, {"web": {"key": "web-key-1"}, "batch": {"key": "batch-key-1", "admin": True}})
    with serving(bundles=[bundles / "mood"], admin_port=0, api_keys_file=keys_file) as live:
        admin = type(live)(f"http://127.0.0.1:{live.service.settings.admin_port}", live.server, live.service)
        for path in ("/models/mood/load", "/v2/repository/index", "/v2/repository/models/mood/load"):
            assert live.post(path, {}, **BATCH).status == 404, "on the admin port only"
            assert admin.post(path, {}, **WEB).status == 403
            assert admin.post(path, {}).status == 403
            assert admin.post(path, {}, **BATCH).status == 200
        assert live.settled_metric("bert_requests_by_key_total", key="batch", status="200") == 3
        assert [admin.post("/models/mood/load", {}, x_api_key="wrong-key").status for _ in range(11)][
            -2:
        ] == [403, 429]
        assert admin.post("/models/mood/unload", {}, **BATCH).status == 200


def test_processes_share_the_ports_and_the_keys(bundles: Path, keys_file: Path) -> None:
    arguments = ["--bundles", str(bundles / "mood"), "--api-keys-file", str(keys_file)]
    with started(*arguments, "--frontends", "2", "--admin-port", "0") as process:
        shown = process.until("Ctrl-C stops it.")
        public, admin = (Client(found) for found in re.findall(r"(http://[\d.:]+)/(?:docs|metrics)", shown))
        assert public.get("/metrics").status == 404
        eventually(lambda: public.post("/classify", TEXT, **WEB).status == 200)  # the other may still load
        assert b'bert_requests_by_key_total{key="web",status="200"} 1.0' in admin.get("/metrics").body
        assert "$BERT_SERVE_API_KEY" in shown
