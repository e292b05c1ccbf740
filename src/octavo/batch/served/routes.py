"""OpenAI's /v1/files and /v1/batches: an application around a server's, whose folder they are in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine
from functools import partial
from hashlib import sha256
from time import time
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.batch.request_line import URLS
from octavo.batch.served.batches import ENDED, Batch, BatchStore
from octavo.batch.served.files import FileStore, full
from octavo.batch.served.runner import MOST_INPUT, Places, Runner
from octavo.batch.served.upload import Form, receive
from octavo.errors import FileError
from octavo.server.app import TOLD, Around, answer_error
from octavo.server.generation.ids import new_id
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.body import Bodies, Sharing, read_as
from octavo.server.routes.answer import json_response, key_of
from octavo.server.routes.kept_responses import listed
from octavo.server.routes.schema import Body, few
from octavo.server.serve_options import ServerOptions

WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
OURS = re.compile(r"(/v1)?/(files|batches)(/.*)?", re.DOTALL)
"""Paths that are answered here, if only with a 404."""
LEAST_S, MOST_S = 3600, 30 * 24 * 3600
"""Seconds after which files may be made to go."""
MOST_LISTED = 10_000
SECONDS = Annotated[int, Field(ge=LEAST_S, le=MOST_S)]
MOST_KEYS, MOST_KEY, MOST_VALUE = 16, 64, 512
"""Of metadata, and characters of a key and of a value, as OpenAI has it."""


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: SECONDS


def _short(metadata: Any) -> Any:
    """Metadata, looked at before its keys stand in an error."""
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        if len(key) > MOST_KEY:
            raise ValueError(f"a key has {len(key)} characters (allowed: up to {MOST_KEY})")
        if isinstance(value, str) and len(value) > MOST_VALUE:
            raise ValueError(f"the value of {key!r} has {len(value)} characters (allowed: up to {MOST_VALUE})")
    return metadata


class CreateBatch(Body):
    """What a batch is made of."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[str, str], BeforeValidator(_short), few(MOST_KEYS)] | None = None
    output_expires_after: ExpiresAfter | None = None


class ServedBatches:
    """Files and batches in a folder, for the keys that they were made with.

    options   of the server
    places    requests that a step has room for
    """

    def __init__(self, folder: str, options: ServerOptions, places: int) -> None:
        """Raises FileError for a folder that can't be used."""
        self.options = options
        self.files = FileStore(os.path.join(folder, "files"))
        self.batches = BatchStore(os.path.join(folder, "batches"))
        keys = {sha256(key.encode()).hexdigest(): key for key in options.keys}
        self.runner = Runner(self.batches, self.files, Places(places), keys)
        rows = (
            ("POST", "/files", self.upload), ("GET", "/files", self.list_files), ("GET", "/files/{id}", self.file),
            ("DELETE", "/files/{id}", self.delete_file), ("GET", "/files/{id}/content", self.content),
            ("POST", "/batches", self.create), ("GET", "/batches", self.list_batches),
            ("GET", "/batches/{id}", self.batch), ("POST", "/batches/{id}/cancel", self.cancel),
        )
        routes = [Route(prefix + path, one, methods=[method]) for method, path, one in rows for prefix in ("/v1", "")]
        own = Starlette(routes=routes, exception_handlers=dict.fromkeys(TOLD, answer_error))
        own.router.redirect_slashes = False
        self._own = Sharing(own, Bodies())

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application with these routes too; from now on batches are answered by it."""
        self.runner.start(app)
        places = self.runner.places

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and OURS.fullmatch(scope["path"]):
                await self._own(scope, receive, send)
                return
            counts = scope["type"] == "http" and scope["method"] == "POST"
            places.came(counts)
            try:
                await app(scope, receive, send)
            finally:
                places.came(-counts)

        return both

    async def upload(self, request: Request) -> Response:
        """Take a file of requests."""
        files, owner = self.files, key_of(request)
        length = request.headers.get("content-length", "")
        most = min(int(length), files.most_file) if length.isdigit() and int(length) else files.most_file
        with files.receiving(most) as path:
            try:
                with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
                    form = await receive(request, self.options.limits, file, files.most_file)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise full(f"the file can't be written: {error.strerror or error}") from None
            purpose, seconds = form.fields.get("purpose"), _seconds(form)
            if purpose != "batch":
                raise bad(f"purpose is {(purpose or '')[:80]!r} (allowed: batch)", "purpose")
            if form.filename is None:
                raise bad("file is missing", "file")
            try:
                found = files.add(path, owner, form.filename, purpose, seconds=seconds)
            except FileError as error:
                raise full(f"the file {error.problem}") from None
        return json_response(found.shown())

    async def list_files(self, request: Request) -> Response:
        """The files of a key."""
        found = self.files.of(key_of(request), request.query_params.get("purpose"))
        query = {"limit": str(MOST_LISTED), **request.query_params}
        return json_response(listed([one.shown() for one in found], query, MOST_LISTED))

    async def file(self, request: Request) -> Response:
        """What a file is."""
        return json_response(self.files.find(request.path_params["id"], key_of(request)).shown())

    async def content(self, request: Request) -> Response:
        """The bytes of a file."""
        found = self.files.find(request.path_params["id"], key_of(request))
        return FileResponse(self.files.path(found.id), media_type="application/octet-stream")

    async def delete_file(self, request: Request) -> Response:
        """Remove a file."""
        found = self.files.find(request.path_params["id"], key_of(request))
        for one in self.batches.waiting:
            if one.input_file_id == found.id:
                raise ApiError(409, f"{found.id} is the input of {one.id}, which is {one.status}: cancel that first",
                               param="id", type="invalid_request_error")
        self.files.remove(found.id)
        return json_response({"id": found.id, "object": "file", "deleted": True})

    async def create(self, request: Request) -> Response:
        """Begin to answer a file of requests."""
        body, owner, now = await read_as(request, CreateBatch, self.options.limits), key_of(request), int(time())
        if body.endpoint not in URLS:
            raise bad(f"endpoint is {body.endpoint[:80]!r} (allowed: {', '.join(URLS)})", "endpoint")
        window = WINDOW.fullmatch(body.completion_window)
        seconds = 0 if window is None else int(window[1]) * (3600 if window[2] == "h" else 24 * 3600)
        if not 0 < seconds <= MOST_S:
            raise bad(f"completion_window is {body.completion_window[:80]!r} (allowed: 24h, and others from 1h to 30d)",
                      "completion_window")
        source = self.files.files.get(body.input_file_id)
        if source is None or source.owner != owner:
            raise bad(f"No such File object: {body.input_file_id[:200]}", "input_file_id")
        if source.purpose != "batch":
            raise bad(f"{source.id} is of purpose {source.purpose} (allowed: batch)", "input_file_id")
        if source.bytes > MOST_INPUT:
            raise bad(f"{source.id} has {source.bytes} bytes (allowed for a batch: {MOST_INPUT})", "input_file_id")
        after = body.output_expires_after
        batch = Batch(
            id=new_id("batch_"), owner=owner, endpoint=body.endpoint, input_file_id=source.id, created_at=now,
            completion_window=body.completion_window, expires_at=now + seconds, metadata=body.metadata or {},
            output_seconds=None if after is None else after.seconds,
        )
        try:
            self.batches.add(batch)
        except FileError as error:
            raise full(f"the batch {error.problem}") from None
        self.runner.begin(batch)
        return json_response(batch.shown())

    async def list_batches(self, request: Request) -> Response:
        """The batches of a key."""
        found = self.batches.of(key_of(request))
        return json_response(listed([one.shown() for one in found], request.query_params))

    async def batch(self, request: Request) -> Response:
        """How a batch is."""
        return json_response(self.batches.find(request.path_params["id"], key_of(request)).shown())

    async def cancel(self, request: Request) -> Response:
        """Have a batch end with what is answered."""
        batch = self.batches.find(request.path_params["id"], key_of(request))
        if batch.status in ENDED or batch.status == "finalizing":
            raise ApiError(409, f"Cannot cancel a batch with status '{batch.status}'.", type="invalid_request_error")
        if batch.status != "cancelling":
            try:
                self.runner.cancel(batch)
            except FileError as error:
                raise full(f"the batch {error.problem}; it goes on: cancel it again once there is room") from None
        return json_response(batch.shown())


async def with_batches(
    options: ServerOptions, places: int, serve: Callable[[Around], Coroutine[Any, Any, None]]
) -> None:
    """Serve with these routes if there is a folder for them; batches stop with it, and go on at the next start.

    Raises FileError for a folder that can't be used.
    """
    made = list[ServedBatches]()

    def around(app: ASGIApp) -> ASGIApp:  # called once the folder is this server's
        if options.data_dir is None:
            return app
        made.append(ServedBatches(options.data_dir, options, places))
        return made[0].around(app)

    try:
        await serve(around)
    finally:
        for one in made:
            await one.runner.close()


def _seconds(form: Form) -> int:
    """Seconds for which a file is kept. Raises ApiError."""
    given, anchor = form.fields.get("expires_after[seconds]"), form.fields.get("expires_after[anchor]")
    if given is None and anchor is None:
        return MOST_S
    if anchor != "created_at" or given is None or not (given.isdecimal() and len(given) < 9):
        raise bad("expires_after needs anchor created_at and seconds", "expires_after")
    if not LEAST_S <= int(given) <= MOST_S:
        raise bad(f"expires_after.seconds is {given} (allowed: {LEAST_S} to {MOST_S})", "expires_after")
    return int(given)
