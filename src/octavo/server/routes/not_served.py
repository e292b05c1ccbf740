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
KEPT = ("/files", "/files/{name:path}", "/batches", "/batches/{name:path}")


async def not_served(request: Request) -> Response:
    """Not served: models here read and write text."""
    path = request.url.path
    raise ApiError(
        501, f"{path} is not served: no model here is for {WHAT[path.removeprefix('/v1')]}, only for text and its "
        "vectors", code="not_served", headers={"x-should-retry": "false"},
    )


async def no_folder(request: Request) -> Response:
    """Not served without a folder for files and batches."""
    raise ApiError(501, f"{request.url.path} needs a folder for files and batches: start octavo serve with "
                        "--data-dir FOLDER", code="no_data_dir", headers={"x-should-retry": "false"})


NOT_SERVED = (
    *(("POST", prefix + path, not_served) for path in WHAT for prefix in ("/v1", "")),
    *((method, prefix + path, no_folder) for path in KEPT for method in ("GET", "POST", "DELETE")
      for prefix in ("/v1", "")),
)
