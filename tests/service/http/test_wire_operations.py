"""Readiness, the key and the metrics, over a real socket."""

import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from service.engine.bundle_loader import BundleLoader
from service.metrics import REJECTIONS
from tests.support.live import Live, eventually, serving
from tests.support.problems import TEXT, kind, rejected


def test_before_the_models_are_loaded_live_says_yes_and_ready_says_no(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, load = threading.Event(), BundleLoader.load
    monkeypatch.setattr(BundleLoader, "load", lambda *a, **k: gate.wait(120) and load(*a, **k))
    with serving(wait=False, bundles=[bundles / "mood"]) as live:
        assert live.get("/health/live").status == 200
        for reply in (live.get("/health/ready"), live.post("/classify", TEXT), live.get("/models")):
            assert (reply.status, kind(reply)) == (503, "not-ready")
            assert "retry-after" in reply.headers
        assert live.metric("bert_ready") == 0
        asked = rejected(live, "not_ready")
        for path in ("/health/ready", "/models", "/v2/health/ready", "/", "/status", "/web/status.js"):
            live.get(path)
        assert rejected(live, "not_ready") == asked, "a probe or a page asks for no result"
        assert live.post("/classify", TEXT).status == 503
        assert rejected(live, "not_ready") == asked + 1
        gate.set()
        eventually(lambda: live.get("/health/ready").status == 200)
        assert live.post("/classify", TEXT).status == 200


def test_a_key_is_needed_for_what_costs_and_not_for_health(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], api_key="correct-horse") as live:
        for headers in (
            {},
            {"x_api_key": "wrong"},
            {"authorization": "Bearer wrong"},
            {"x_api_key": "caf\u00e9"},
        ):
            reply = live.post("/classify", TEXT, **headers)
            assert (reply.status, kind(reply)) == (401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        assert live.get("/models").status == 401
        assert live.get("/nothing").status == 401
        for headers in ({"x_api_key": "correct-horse"}, {"authorization": "bearer correct-horse"}):
            assert live.post("/classify", TEXT, **headers).status == 200
        for path in ("/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"):
            assert live.get(path).status == 200
        assert "security" in live.get("/openapi.json").json
        assert rejected(live, "unauthorized") == 6


def test_metrics_are_those_of_the_design(live: Live) -> None:
    live.post("/classify", TEXT)
    names = {
        line.split(" ")[2]
        for line in live.get("/metrics").body.decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert {name for name in names if name.startswith("bert_") and not name.endswith("_created")} == {
        "bert_request_duration_seconds",
        "bert_queue_duration_seconds",
        "bert_tokenize_duration_seconds",
        "bert_inference_duration_seconds",
        "bert_batch_tokens",
        "bert_batch_texts",
        "bert_batch_padding_ratio",
        "bert_queue_tokens",
        "bert_queue_texts",
        "bert_requests_in_flight",
        "bert_requests_rejected_total",
        "bert_tokens_total",
        "bert_open_connections",
        "bert_requests_by_key_total",
        "bert_tokens_by_key_total",
        "bert_keys_file_error",
        "bert_certificate_expiry_timestamp_seconds",
        "bert_model_info",
        "bert_model_fallback",
        "bert_model_load_failed",
        "bert_shadow_requests_total",
        "bert_model_left_out",
        "bert_model_ready",
        "bert_ready",
        "bert_results_total",
        "bert_result_score",
        "bert_batches_out_of_memory_total",
        "bert_text_tokens",
        "bert_truncated_texts_total",
        "bert_label_vectors_total",
        "bert_label_vectors_bytes",
        "bert_spans_dropped_total",
    }
    info = {"task": "classification", "version": "1", "precision": "fp32", "provider": "CPUExecutionProvider"}
    assert live.metric("bert_model_info", model="mood", default="true", **info) == 1
    labels = {"endpoint": "/classify", "model": "mood", "status": "200"}
    assert live.settled_metric("bert_request_duration_seconds_count", **labels) > 0
    assert all(
        live.service.metrics.registry.get_sample_value("bert_requests_rejected_total", {"reason": r})
        is not None
        for r in REJECTIONS
    )


def test_metrics_of_queue_tokens_and_batches_are_by_model(live: Live) -> None:
    names = (
        *(
            "bert_tokenize_duration_seconds_count",
            "bert_queue_duration_seconds_count",
            "bert_batch_texts_sum",
        ),
        *("bert_batch_tokens_sum", "bert_batch_padding_ratio_count", "bert_inference_duration_seconds_count"),
    )
    before = {name: live.settled_metric(name, model="topics") for name in (*names, "bert_tokens_total")}
    reply = live.post("/classify", {"text": ["a film", "the film was warm"], "model": "topics"})
    for name in names:
        assert live.settled_metric(name, model="topics") > before[name]
    tokens = live.settled_metric("bert_tokens_total", model="topics") - before["bert_tokens_total"]
    assert tokens == reply.json["usage"]["tokens"] == 10
    shown = live.get("/metrics").body
    assert b'bert_queue_tokens{model="topics"} 0.0' in shown
    assert b'bert_queue_texts{model="topics"} 0.0' in shown


def test_a_requests_duration_begins_with_its_first_byte(live: Live) -> None:
    labels = {"endpoint": "/models", "status": "200"}
    before = live.metric("bert_request_duration_seconds_sum", **labels)
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(b"GET /models HTTP/1.1\r\nhost")
        time.sleep(0.3)
        raw.sendall(b": x\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: live.metric("bert_request_duration_seconds_sum", **labels) - before >= 0.3)


def test_open_connections_are_counted(live: Live) -> None:
    eventually(lambda: live.metric("bert_open_connections") == 0)
    with socket.create_connection(live.connect_to()), socket.create_connection(live.connect_to()):
        eventually(lambda: live.metric("bert_open_connections") == 2)
    eventually(lambda: live.metric("bert_open_connections") == 0)


def test_clients_cannot_make_new_series(live: Live) -> None:
    for i in range(3):
        live.get(f"/made-up-{i}")
        live.post("/classify", {"text": "a", "model": f"made-up-{i}"})
    assert b"made-up" not in live.get("/metrics").body
    labels = {"endpoint": "other", "model": "", "status": "404"}
    assert live.settled_metric("bert_request_duration_seconds_count", **labels) >= 3


def test_an_idle_connection_may_ask_once_more_while_the_service_stops(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client cannot know yet; its answer tells it."""
    monkeypatch.setattr("service.http.lingering.LAST_REQUEST_S", 15.0)
    with serving(bundles=[bundles / "mood"]) as live, closing(live.connect()) as client:

        def ask() -> tuple[int, str | None]:
            client.request("GET", "/models")
            response = client.getresponse()
            response.read()
            return response.status, response.getheader("connection")

        assert ask() == (200, None)
        live.server.handle_exit(signal.SIGTERM, None)
        eventually(lambda: not any(server.is_serving() for server in live.server.servers))
        assert ask() == (200, "close")


def test_an_idle_connection_is_closed_when_nothing_can_be_under_way(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"]) as live, closing(live.connect()) as client:
        client.request("GET", "/health/live")
        client.getresponse().read()
        live.server.handle_exit(signal.SIGTERM, None)
        assert client.sock.recv(1) == b""
