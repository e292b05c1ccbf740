"""Answers batches: their lines are asked of the server's own application, while other requests leave room for them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import time
from typing import Any

import numpy as np
from starlette.types import ASGIApp

from octavo.batch.batch_run import BatchCounts, BatchRun
from octavo.batch.input_index import InputIndex, index_input
from octavo.batch.output_files import OutputFiles, files_of
from octavo.batch.replica import ENDED as ENGINE_ENDED
from octavo.batch.replica import ReplicaDiedError, code_of, message_of
from octavo.batch.request_line import CHAT, PLAIN, BatchRequest, Defaults, LineError
from octavo.batch.served.batches import ENDED, Batch, BatchStore
from octavo.batch.served.files import USUAL_S, FileStore
from octavo.errors import FileError
from octavo.server.http.inner_call import Answer, asked

log = logging.getLogger("octavo")
TOGETHER = 4
"""Batches that are answered at a time."""
SPARE = 8
"""One of this number of places of a step is left free of batches, for a request that comes."""
MOST_LINES, MOST_INPUT = 50_000, 200 << 20
"""Of a batch, as OpenAI has it."""
MOST_ERRORS = 100
"""Lines that are wrong, of which a batch tells."""
AGAIN_S = 30.0
"""Seconds after which a batch goes on that could not write."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIES = 0.1, 10.0, 20
LATER = frozenset({"loading", "queue_full", "engine_dead", "engine_silent", "engine_stalled", "no_replica"})
"""Codes of errors after which a line is asked again as often as it takes."""
ENDING, REPLICAS_ENDED = "server_ending", "replicas_ended"
PRIORITY = 1
"""Of lines: a higher number than that of other requests is served later."""
CODES = {"invalid_json": "invalid_json_line", "repeated_custom_id": "duplicate_custom_id",
         "missing_custom_id": "missing_required_parameter"}
"""OpenAI's names of what may be wrong with a line."""
EXPIRED = "This request could not be executed before the completion window expired."
UNKNOWN_KEY = "the API key that the batch was made with is none of the server's any more"


class Places:
    """Lines that may be asked now: as many as steps have room for beside other requests, and one at the least."""

    def __init__(self, most: int) -> None:
        self.most, self.live, self.lines = max(1, most - most // SPARE), 0, 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place for a line."""
        while self.lines and self.live + self.lines >= self.most:
            self._changed.clear()
            await self._changed.wait()
        self.lines += 1
        try:
            yield
        finally:
            self.lines -= 1
            self._changed.set()

    def came(self, n: int) -> None:
        """Other requests have come, or gone, as many as `n` is below 0."""
        self.live += n
        self._changed.set()


class ServedReplica:
    """The server's application as what answers a batch, see `Replica`.

    key, headers  of the requests
    """

    def __init__(self, app: ASGIApp, places: Places, key: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.room, self._app, self._places, self._key, self._headers = places.most, app, places, key, headers

    async def start(self) -> None:
        """It is there."""

    async def close(self) -> None:
        """It stays."""

    async def answer(self, url: str, body: bytes, request_id: str) -> Answer:
        """Answer a request. Raises ReplicaDiedError where the engine ended meanwhile."""
        pause, tries = FIRST_PAUSE_S, 0
        while True:
            async with self._places.one():
                found = await asked(self._app, url, body, request_id, key=self._key, headers=self._headers)
            if found.status not in (429, 503):
                return found
            code = code_of(found.body)
            if code == ENDING:  # the line is asked at the next start; those under way may come to their ends
                await asyncio.get_running_loop().create_future()
            if code == ENGINE_ENDED:
                raise ReplicaDiedError(message_of(found.body))
            if code == REPLICAS_ENDED:
                return found
            tries += code not in LATER
            if tries >= TRIES:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


class Runner:
    """Answers the batches of a store, several at a time, each in the order in which it was made.

    keys  of the server, by what requests have of them
    """

    def __init__(self, batches: BatchStore, files: FileStore, places: Places, keys: Mapping[str, str]) -> None:
        self.batches, self.files, self.places, self._keys = batches, files, places, keys
        self._app: ASGIApp | None = None
        self._tasks = dict[str, asyncio.Task[None]]()
        self._room = asyncio.Semaphore(TOGETHER)
        self._thread = ThreadPoolExecutor(1, "batches")
        self._closing = False

    def start(self, app: ASGIApp) -> None:
        """Go on with what is not at its end."""
        self._app = app
        for one in self.batches.waiting:
            self.begin(one)

    def begin(self, batch: Batch) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(batch))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def close(self) -> None:
        """Stop. What is answered is kept, and gone on from at the next start."""
        self._closing = True
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def cancel(self, batch: Batch) -> None:
        """Have a batch end with what is answered. Raises FileError: then it goes on."""
        self.batches.set(batch, "cancelling")
        if (task := self._tasks.get(batch.id)) is not None:
            task.cancel()
        else:
            self.begin(batch)

    async def _answer(self, batch: Batch) -> None:
        """Bring a batch to its end, or as far as the server's."""
        try:
            async with self._room:
                await self._written(batch, self._once)
        except asyncio.CancelledError:
            if self._closing or batch.status != "cancelling":
                raise
            await self._written(batch, self._end_early)
        except Exception as error:
            log.exception("batch %s failed", batch.id)
            with suppress(FileError):
                self._fail(batch, [_fault("internal_error", f"{type(error).__name__}: {error}")])

    async def _written(self, batch: Batch, step: Callable[[Batch], Coroutine[Any, Any, None]]) -> None:
        """Take a step of a batch, again and again until what comes of it can be written."""
        while batch.status not in ENDED:
            try:
                await step(batch)
                return
            except FileError as error:
                log.error("batch %s: %s; it is tried again in %.0f s", batch.id, error, AGAIN_S)
            await asyncio.sleep(AGAIN_S)

    async def _end_early(self, batch: Batch) -> None:
        """Publish what a batch had when it was cancelled. Raises FileError."""
        self._publish(batch)
        self.batches.set(batch, "cancelled")
        self.batches.clear(batch)

    async def _once(self, batch: Batch) -> None:
        """Answer a batch. Raises FileError where what comes of it can't be written."""
        if batch.status == "cancelling":
            await self._end_early(batch)
            return
        if self._keys and batch.owner not in self._keys:
            self._fail(batch, [_fault("invalid_api_key", UNKNOWN_KEY)])
            return
        source = self.files.files.get(batch.input_file_id)
        if source is None:
            self._fail(batch, [_fault("invalid_input_file", "the input file is gone", "input_file_id")])
            return
        wrong = list[dict[str, Any]]()
        try:
            index = await self._index(batch, self.files.path(source.id), wrong)
        except FileError as error:
            self._fail(batch, [_fault("invalid_input_file", error.problem, "input_file_id")])
            return
        try:
            if index.lines > MOST_LINES:
                wrong.append(_fault("too_many_requests", f"the file has {index.lines} lines (allowed: {MOST_LINES})"))
            if not index.lines:
                wrong.append(_fault("empty_file", "the file has no request"))
            if wrong:
                self._fail(batch, wrong)
                return
            batch.request_counts.total = index.lines
            if batch.status == "validating":
                self.batches.set(batch, "in_progress")
            await self._run(batch, index)
        finally:
            index.close()

    async def _index(self, batch: Batch, path: str, wrong: list[dict[str, Any]]) -> InputIndex:
        def bad(number: int, error: LineError) -> None:
            if len(wrong) < MOST_ERRORS:
                wrong.append(_fault(CODES.get(error.code, error.code), error.message) | {"line": number})

        def check(request: BatchRequest) -> None:
            if request.url != batch.endpoint:
                told = f"url is {request.url!r}, but the batch is for {batch.endpoint!r}"
                raise LineError("mismatched_endpoint", told)

        text_url = batch.endpoint if batch.endpoint in PLAIN.values() else CHAT
        call = partial(index_input, path, text_url, bad, check=check)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _run(self, batch: Batch, index: InputIndex) -> None:
        """Ask what is not answered, until all is or it is too late. Raises FileError."""
        assert self._app is not None, "it has been started"
        with self._output(batch) as files:
            done, failed = np.frombuffer(files.done, np.uint64), np.array([*files.failed], np.uint64)
            left = index.order[~np.isin(index.numbers[index.order], np.concatenate((done, failed)))]

            def show(counts: BatchCounts) -> None:
                now = batch.request_counts
                now.completed, now.failed = len(done) + counts.done - counts.failed, len(failed) + counts.failed

            run = BatchRun(index, left, Defaults(seed=None, priority=PRIORITY), files, show)
            show(run.counts)
            if len(left):
                try:
                    async with asyncio.timeout(max(0.0, batch.expires_at - time())):
                        await run.run([ServedReplica(self._app, self.places, batch.owner, self._headers(batch))])
                except TimeoutError:
                    batch.late = True
        if batch.late:
            self._expire(batch, index)
        self.batches.set(batch, "finalizing")
        self._publish(batch)
        self.batches.set(batch, "expired" if batch.late else "completed")
        self.batches.clear(batch)

    def _output(self, batch: Batch) -> OutputFiles:
        files = OutputFiles(self.batches.output(batch), restart=False, mode=0o600)
        files.begin({"input": batch.input_file_id, "endpoint": batch.endpoint})
        return files

    def _expire(self, batch: Batch, index: InputIndex) -> None:
        """Write of each request that is not answered that it is too late."""
        with self._output(batch) as files:
            answered = {*files.failed, *files.done}
            for i, number in enumerate(map(int, index.numbers)):
                if number not in answered:
                    files.refuse(number, LineError("batch_expired", EXPIRED, index.request(i).custom_id))
            batch.request_counts.completed, batch.request_counts.failed = len(files.done), len(files.failed)

    def _headers(self, batch: Batch) -> list[tuple[bytes, bytes]]:
        key = self._keys.get(batch.owner)
        return [] if key is None else [(b"authorization", b"Bearer " + key.encode())]

    def _publish(self, batch: Batch) -> None:
        """Have what was written as files of the batch's key. Raises FileError."""
        names = files_of(self.batches.output(batch))
        for kind, field in (("output", "output_file_id"), ("errors", "error_file_id")):
            path = names[kind]
            if not os.path.exists(path) or not os.path.getsize(path):
                continue
            seconds = batch.output_seconds or USUAL_S
            name = f"{batch.id}_{'output' if kind == 'output' else 'error'}.jsonl"
            one = f"file-{batch.id.removeprefix('batch_')}{'o' if kind == 'output' else 'e'}"
            setattr(batch, field, self.files.add(path, batch.owner, name, "batch_output", seconds=seconds, one=one).id)

    def _fail(self, batch: Batch, errors: list[dict[str, Any]]) -> None:
        self.batches.set(batch, "failed", errors=errors)


def _fault(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": None}
