"""Readiness, the key and the metrics, over a real socket."""

import threading
from pathlib import Path

import pytest

from service import registry
from service.metrics import REJECTIONS
from tests.service.live import Live, eventually, serving
from tests.service.test_wire_limits import TEXT, kind, rejected


def test_before_the_models_are_loaded_live_says_yes_and_ready_says_no(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, load = threading.Event(), registry.load_models
    monkeypatch.setattr("service.engines.load_models", lambda *a, **k: gate.wait(10) and load(*a, **k))
    with serving(wait=False, bundles=[bundles / "mood"]) as live:
        assert live.get("/health/live").status == 200
        for reply in (live.get("/health/ready"), live.post("/classify", TEXT), live.get("/models")):
            assert (reply.status, kind(reply)) == (503, "not-ready")
            assert "retry-after" in reply.headers
        assert live.metric("bert_ready") == 0
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
        "bert_model_info",
        "bert_ready",
    }
    info = {"task": "classification", "version": "1", "precision": "fp32", "provider": "CPUExecutionProvider"}
    assert live.metric("bert_model_info", model="mood", default="true", **info) == 1
    assert (
        live.metric("bert_request_duration_seconds_count", endpoint="/classify", model="mood", status="200")
        > 0
    )
    assert all(
        live.service.metrics.registry.get_sample_value("bert_requests_rejected_total", {"reason": r})
        is not None
        for r in REJECTIONS
    )


def test_clients_cannot_make_new_series(live: Live) -> None:
    for i in range(3):
        live.get(f"/made-up-{i}")
        live.post("/classify", {"text": "a", "model": f"made-up-{i}"})
    assert b"made-up" not in live.get("/metrics").body
    assert live.metric("bert_request_duration_seconds_count", endpoint="other", model="", status="404") >= 3
