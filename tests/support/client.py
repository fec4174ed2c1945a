"""Asking a service over its socket, whether it is another process or a thread of this one."""

import json
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from tests.support.live import Reply

Result = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """Asks the service at `url`."""

    url: str

    def post(self, path: str, **body: object) -> Reply:
        """Send a request."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def ask(self, path: str, **body: object) -> list[Result]:
        """Send a request that has to succeed, and return its results."""
        reply = self.post(path, **body)
        assert reply.status == 200, f"{path}: {reply.status} {reply.body.decode()[:500]}"
        results: list[Result] = reply.json["results"]
        return results


def check_offsets(path: str, text: str, result: Result) -> None:
    """Assert that every position in a result of `/ner` or `/qa` gives back what it stands for."""
    if path == "/ner":
        stretches = [(entity["text"], entity) for entity in result["entities"]]
        starts = [entity["start"] for entity in result["entities"]]
        assert starts == sorted(starts)
    else:
        best = [result] if result["answer"] is not None else []
        stretches = [(answer["answer"], answer) for answer in (*best, *result["alternatives"])]
    for shown, found in stretches:
        assert 0 <= found["start"] < found["end"] <= len(text)
        assert text[found["start"] : found["end"]] == shown
        assert shown.strip() == shown, "spaces are no part of an answer"
