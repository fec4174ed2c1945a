"""The clients of gliner.serve and NeMo Guardrails, in the Python of an environment that has them, ask a service.

    BERT_GLINER_PYTHON tests/support/gliner_clients.py < JSON

The JSON has `url`, `text`, `labels` and `threshold`. Prints what each client returns.
"""

import asyncio
import json
import sys
from typing import Any

from gliner.serve.client import GLiNERClient, GLiNERClientError
from nemoguardrails.library.gliner.actions import _mask_text_with_entities
from nemoguardrails.library.gliner.request import gliner_request


def refusal(error: type[Exception], function: Any) -> str:
    """Return what the error of a call says."""
    try:
        function()
    except error as found:
        return str(found)
    raise AssertionError("it was not refused")


def main() -> None:
    """Ask with each client."""
    asked = json.load(sys.stdin)
    url, text, labels, threshold = (asked[name] for name in ("url", "text", "labels", "threshold"))
    client = GLiNERClient(url)

    def guardrails(path: str, **more: Any) -> dict[str, Any]:
        given = {"enabled_entities": labels, "threshold": threshold, **more}
        return asyncio.run(gliner_request(text, f"{url}{path}", **given))

    found = {
        "gliner": client.predict([text, "Munich"], labels, threshold=threshold),
        "relations": refusal(
            GLiNERClientError, lambda: client.predict(text, labels, relations=["works for"])
        ),
        "extract": guardrails("/v1/extract"),
        "chat": guardrails("/v1/chat/completions"),
        "refused": refusal(ValueError, lambda: guardrails("/v1/extract", enabled_entities=["a", "a"])),
    }
    found["masked"] = _mask_text_with_entities(text, found["extract"]["entities"])
    print(json.dumps(found))


main()
