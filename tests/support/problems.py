"""What a problem response says, and a request that gets one."""

from typing import Any

from tests.support.live import Live, Reply

TEXT = {"text": "a film in munich"}  # 6 tokens


def rejected(live: Live, reason: str) -> float:
    return live.metric("bert_requests_rejected_total", reason=reason)


def kind(reply: Reply) -> str:
    assert reply.headers["content-type"] == "application/problem+json"
    return str(reply.json["type"]).removeprefix("urn:bert-serve:")


def is_problem(reply: Reply, status: int) -> dict[str, Any]:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json
    assert problem["status"] == status
    assert problem["type"].startswith("urn:bert-serve:")
    assert problem["title"] and problem["detail"]
    assert problem["request_id"] == reply.headers["x-request-id"]
    assert "total;dur=" in reply.headers["server-timing"]
    return dict(problem)


def fields(reply: Reply) -> dict[str, str]:
    return {error["field"]: error["message"] for error in is_problem(reply, 422)["errors"]}
