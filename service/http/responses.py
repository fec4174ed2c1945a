"""Responses of tasks: JSON, or vectors as a NumPy file."""

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response

from service.http import openapi
from service.pipeline.inputs import RequestContext
from service.tasks.task import Embedded, in_parts, to_json

MAX_LISTED = 200
"""Maximum indices in the header X-Truncated: proxies accept few kilobytes of headers."""


class JsonResponse(Response):
    """A 200 with two headers."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers; Starlette's own method costs more."""
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]


def task_response(context: RequestContext, results: Iterable[Mapping[str, Any]]) -> Response:
    """Return the 200 with these results."""
    usage = {"tokens": context.tokens}
    body: dict[str, object] = {"model": context.model, "results": in_parts(results), "usage": usage}
    if context.warnings:
        body["warnings"] = context.warnings
    return JsonResponse(to_json(body))


def npy(context: RequestContext, embedded: Embedded) -> Response:
    """Return the 200 of vectors (N, E) as a NumPy file, with what JSON says beside them in headers."""
    file = BytesIO()
    np.save(file, np.ascontiguousarray(embedded.vectors, "<f4"), allow_pickle=False)
    name = context.model
    headers = {
        "X-Model": name if name.isascii() and name.isprintable() else quote(name),
        "X-Usage-Tokens": str(context.tokens),
    }
    if any(embedded.truncated):
        cut = [str(index) for index, cut in enumerate(embedded.truncated) if cut]
        headers["X-Truncated"] = ",".join(cut[:MAX_LISTED])
        headers["X-Truncated-Count"] = str(len(cut))
    return Response(file.getvalue(), headers=headers, media_type=openapi.NPY)
