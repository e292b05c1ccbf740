"""OpenAI's routes for what no model here does: they say so, in place of a 404 that could mean a wrong address."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.http.api_errors import ApiError

WHAT: Mapping[str, str] = {
    "/audio/speech": "speech", "/audio/transcriptions": "transcriptions of audio",
    "/audio/translations": "translations of audio", "/images/generations": "images", "/images/edits": "edits of images",
    "/images/variations": "variations of images", "/moderations": "moderation",
}
"""What they are for, by their paths without /v1."""


async def not_served(request: Request) -> Response:
    """Not served: models here read and write text."""
    path = request.url.path
    raise ApiError(
        501, f"{path} is not served: no model here is for {WHAT[path.removeprefix('/v1')]}, only for text and its "
        "vectors", code="not_served", headers={"x-should-retry": "false"},
    )


NOT_SERVED = tuple(("POST", prefix + path, not_served) for path in WHAT for prefix in ("/v1", ""))
