"""Batches that clients have made: what each is, and how far, written to a folder whenever its status changes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec

from octavo.batch.output_files import files_of
from octavo.errors import FileError
from octavo.io.atomic import failures_of, written_file
from octavo.io.regular_file import read_text
from octavo.server.http.api_errors import ApiError

log = logging.getLogger("octavo")
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: tuple[Status, ...] = ("completed", "failed", "expired", "cancelled")
MOST, MOST_WAITING = 1000, 100
"""Batches that are remembered, of all keys, and those of them that are not at their ends."""
MOST_SAID = 4 << 20
ENDING = ".json"


class Counts(msgspec.Struct):
    """Requests of a batch, and what became of them so far."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch, by OpenAI's names; `owner` is the key that it was made with.

    errors          why it has failed: `code`, `message`, `param` and `line` of each
    output_seconds  for which its files are kept; None for as long as usual
    late            not all was answered in time
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_seconds: int | None = None
    late: bool = False
    errors: list[dict[str, Any]] = []
    request_counts: Counts = msgspec.field(default_factory=Counts)
    metadata: dict[str, str] = {}

    def shown(self) -> dict[str, Any]:
        """As clients see it."""
        hidden = ("owner", "output_seconds", "late")
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in hidden}
        errors = {"object": "list", "data": self.errors} if self.errors else None
        return {"object": "batch", **found, "errors": errors, "metadata": self.metadata or None}


class BatchStore:
    """The batches in a folder, by their ids, in the order in which they were made."""

    def __init__(self, folder: str, *, most: int = MOST, most_waiting: int = MOST_WAITING) -> None:
        """Raises FileError for a folder that can't be made."""
        self.folder, self._most, self._most_waiting = folder, most, most_waiting
        with failures_of(folder):
            os.makedirs(folder, 0o700, exist_ok=True)
        found = sorted(self._found(), key=lambda one: (one.created_at, one.id))
        self.batches = {one.id: one for one in found}

    def _found(self) -> Iterator[Batch]:
        for name in sorted(os.listdir(self.folder)):
            if not name.endswith(ENDING):
                continue
            path = os.path.join(self.folder, name)
            try:
                one = msgspec.json.decode(read_text(path, MOST_SAID), type=Batch)
                if name != one.id + ENDING:
                    raise FileError(f"is of {one.id}", file=path)
            except (FileError, msgspec.MsgspecError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            yield one

    @property
    def waiting(self) -> list[Batch]:
        """Those that are not at their ends, in their order."""
        return [one for one in self.batches.values() if one.status not in ENDED]

    def output(self, batch: Batch) -> str:
        """The path of its responses while it is answered; `files_of` has those beside it."""
        return os.path.join(self.folder, f"{batch.id}.jsonl")

    def add(self, batch: Batch) -> None:
        """Have another batch. The oldest that is at its end makes room. Raises ApiError for too many, FileError."""
        if len(self.waiting) >= self._most_waiting:
            raise ApiError(429, f"{len(self.waiting)} batches wait or run (allowed: {self._most_waiting})",
                           code="queue_full", headers={"Retry-After": "60"})
        while len(self.batches) >= self._most:
            oldest = next(one for one in self.batches.values() if one.status in ENDED)
            del self.batches[oldest.id]
            self.clear(oldest)
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, oldest.id + ENDING))
        self.save(batch)
        self.batches[batch.id] = batch

    def save(self, batch: Batch) -> None:
        """Write down how it is. Raises FileError."""
        path = os.path.join(self.folder, batch.id + ENDING)
        with written_file(path, mode=0o600) as temporary, open(temporary, "wb") as file:
            file.write(msgspec.json.encode(batch))

    def set(self, batch: Batch, status: Status, **more: Any) -> None:
        """Give it a status, with the time, and what else there is to say. Raises FileError: then it is as it was."""
        fields = {"status": status, **more}
        if status != "validating":
            fields[f"{status}_at"] = int(time.time())
        self.save(msgspec.structs.replace(batch, **fields))
        for name, value in fields.items():
            setattr(batch, name, value)

    def clear(self, batch: Batch) -> None:
        """Remove the files that it was answered with."""
        for path in files_of(self.output(batch)).values():
            with suppress(OSError):
                os.unlink(path)

    def of(self, owner: str) -> list[Batch]:
        return [one for one in self.batches.values() if one.owner == owner]

    def find(self, one: str, owner: str) -> Batch:
        """A batch of a key. Raises ApiError for none."""
        found = self.batches.get(one)
        if found is None or found.owner != owner:
            raise ApiError(404, f"No batch found with id '{one[:200]}'.", param="id", type="invalid_request_error")
        return found
