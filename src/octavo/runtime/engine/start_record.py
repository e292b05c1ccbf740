"""What a start found out about a model's steps on a device, for the next one: seconds of a step by its size, and how
many steps were of each size.

It lies in the folder of the device's compiled kernels, which is another one for other versions of these. Whatever is
wrong with the file costs what it would have saved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import FileError
from octavo.graph.protocol import RememberingBackend
from octavo.io.atomic import written_file
from octavo.io.regular_file import open_regular
from octavo.runtime.engine.captured_sizes import StepSize

if TYPE_CHECKING:
    from octavo.runtime.engine.engine import Engine

log = logging.getLogger("octavo")

VERSION = 1
MOST_BYTES = 1 << 20
MOST_SECONDS = 3600.0


@dataclass
class StartRecord:
    """What is known by size.

    path     of its file; None where nothing is kept
    seconds  of a step
    steps    of earlier starts; those of the last one count twice as much as those before, and so on
    """

    path: Path | None = None
    seconds: dict[StepSize, float] = field(default_factory=dict)
    steps: Counter[StepSize] = field(default_factory=Counter)

    def save(self, steps: Counter[StepSize]) -> None:
        """Write it, if it can be, with the steps of this start."""
        if self.path is None:
            return
        every = sorted({*self.seconds, *self.steps, *steps})
        sizes = [[*size, self.seconds.get(size), self.steps[size] + steps[size]] for size in every]
        try:
            with written_file(self.path) as temporary:
                Path(temporary).write_text(json.dumps({"version": VERSION, "sizes": sizes}), encoding="utf-8")
        except FileError as error:
            log.info("what this start found out can't be kept: %s", error)


def record_of(engine: Engine) -> StartRecord:
    """What is known of an engine's model on its device; nothing where its file is not there, or is damaged."""
    path = _path(engine)
    record = StartRecord(path)
    if path is None or not path.exists():
        return record
    try:
        with open_regular(str(path), "a record of steps", FileError) as file:
            found = json.loads(file.read(MOST_BYTES))
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']} (allowed: {VERSION})")
        for replies, tokens, seconds, steps in found["sizes"]:
            size = StepSize(_count(replies), _count(tokens))
            record.steps[size] = _count(steps) // 2
            if seconds is not None:
                record.seconds[size] = _seconds(seconds)
    except (FileError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.info("what an earlier start found out can't be read and is found out again: %s: %s", path, error)
        return StartRecord(path)
    return record


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not 0 < value < MOST_SECONDS:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def _path(engine: Engine) -> Path | None:
    """The file's, which depends on the model's files, the device, and what else decides on steps and their times."""
    backend = engine.backends[0]
    if not isinstance(backend, RememberingBackend) or engine.ranks > 1:
        return None
    folder, device = backend.remembers()
    if folder is None:
        return None
    try:
        files = [(os.path.realpath(file), *_state(file)) for file in engine.model.file.files]
    except OSError:
        return None
    config = sorted((name, repr(value)) for name, value in asdict(engine.config).items())
    key = repr((device, files, config, engine.n_ctx, engine.stages, engine.lora))
    return folder / f"steps-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _state(file: str) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns
