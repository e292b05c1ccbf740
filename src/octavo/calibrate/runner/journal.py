"""How far a run is, and what its stages came to, in a folder of its own, so that one that was killed can go on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from octavo.errors import FileError, NonFiniteError, QuantFormatError, UsageError
from octavo.formats.spec import AnyArray
from octavo.io import regular_file
from octavo.io.atomic import failures_of, written_file
from octavo.io.locks import locked_if_any
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.quantizers.job.quantization_record import JsonReader

T = TypeVar("T")

ABOUT = "octavo"
_KINDS = {"float32": "F32", "uint8": "U8"}
STATE, LOCK = "state.json", "lock"
LARGEST_STATE = 1 << 16
PARTS = ("model", "text (or other samples of it)", "option")
"""Of a run's name, see `octavo.calibrate.run_name`."""
VALUES = re.compile(r"(changed|original)-\d+\.bin")
"""Files of values, which a run that goes on makes once more."""
OWN = re.compile(
    rf"state\.json|lock|{VALUES.pattern}|stage-\d+\.safetensors|scales\.safetensors|\.octavo-[0-9a-f]{{16}}\.tmp"
)
"""Files of a journal's folder."""


def stage_path(folder: str, number: int) -> str:
    """The file of a stage."""
    return os.path.join(folder, f"stage-{number}.safetensors")


def stage_files(folder: str, first: int, kind: type[T]) -> Iterator[T]:
    """What files of the stages before `first` hold, where there are some, as `read_file` gives it."""
    for number in range(first):
        if os.path.exists(path := stage_path(folder, number)):
            yield read_file(path, kind)


def write_file(path: str, values: object) -> None:
    """Write values, whole or not at all; arrays are of float32 and uint8. Raises FileError."""
    arrays = {"none": np.zeros(1, np.float32)}
    about = json.dumps(_apart(values, arrays))
    heads = [TensorHead(name, _KINDS[str(x.dtype)], x.shape) for name, x in arrays.items()]
    with written_file(path) as temporary:
        write_safetensors(temporary, heads, map(np.ascontiguousarray, arrays.values()), {ABOUT: about})


def _apart(value: Any, arrays: dict[str, AnyArray]) -> Any:
    """A value as JSON has it, the arrays in it under names of their own."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return name
    if is_dataclass(value):
        return {f.name: _apart(getattr(value, f.name), arrays) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _apart(each, arrays) for key, each in value.items()}
    return value if value is None or isinstance(value, str | int | float) else [_apart(x, arrays) for x in value]


def read_file(path: str, kind: type[T]) -> T:
    """Values of a type as they were written, those of a `Sequence` whenever one is asked for.

    Raises FileError for a file that is not as it was written.
    """
    file = SafetensorsFile.open(path)

    def array(name: str) -> AnyArray:
        found = file.tensors[name]
        return found.floats() if found.dtype == "F32" else found.array()

    try:
        return JsonReader(path, array).read(kind, json.loads(file.metadata[ABOUT]))
    except (KeyError, ValueError, TypeError):
        raise FileError("is not what a run keeps", file=path, field=ABOUT, allowed="to begin anew") from None


class Journal:
    """How far a run is, in a folder of its own, so that another one can go on after it was killed.

    run     names what two runs must share for that: model, samples, options
    resume  go on from what is there; otherwise, and where nothing is, begin anew

    `stage` is the one to go on with, and `holds` whether anything was made that a run can go on from.

    Raises UsageError where the folder is of another run, or another process is at work in it, FileError where it can't
    be a folder or be written to.
    """

    def __init__(self, folder: str, run: str, *, resume: bool) -> None:
        self.folder, self._run, self._resume = folder, run, resume
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise FileError("is not a folder", file=folder, allowed="a folder, for what the run keeps, or a new name")
        with failures_of(folder):
            os.makedirs(folder, exist_ok=True)
            self._lock = os.open(os.path.join(folder, LOCK), os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if not locked_if_any(self._lock):
                raise UsageError(f"another process is at work in {folder}")
            found = self._read() if resume else None
            self.stage, self.holds = found or 0, found is not None
            with failures_of(folder):
                _clear(folder, VALUES if self.holds else OWN, but=LOCK)
        except BaseException:
            os.close(self._lock)
            raise

    def advance(self, stage: int) -> None:
        """Say that all stages before `stage` are done; of stage 0 that something was made before any."""
        with written_file(self._path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump({"run": self._run, "stage": stage}, file)
        self.stage, self.holds = stage, True

    def close(self, *, remove: bool) -> None:
        os.close(self._lock)
        if remove:
            remove_journal(self.folder)

    def end(self, error: BaseException | None) -> None:
        """Close the folder of a run whose result is written, or could not be: with the error, as of `stop`."""
        if error is None:
            self.close(remove=True)
        else:
            self.stop(error)

    def stop(self, error: BaseException) -> None:
        """Close the folder of a run that an error, or a signal, has ended.

        What is done stays, and a note of the error says how to go on. The folder is removed where nothing is done, and
        where values ended the run that would end the next one too, unless it was asked to go on.
        """
        again = isinstance(error, NonFiniteError | QuantFormatError) and not self._resume
        kept = self.holds and not again
        self.close(remove=not kept)
        if kept:
            note_kept(self.folder, error)

    @property
    def _path(self) -> str:
        return os.path.join(self.folder, STATE)

    def _read(self) -> int | None:
        """The stage to go on from, None where nothing is there."""
        state = _state(self.folder)
        if state is None:
            return None
        run, stage = state
        if run != self._run:
            problem = f"{self.folder} is of a run with another {differing(run, self._run)}"
            raise UsageError(f"{problem}: give the same ones, or start anew without --resume")
        return stage


def differing(kept: object, run: str, parts: Sequence[str] = PARTS) -> str:
    """In words, which parts of a run's name are others than `kept` has: any of them where it has no such parts."""
    pairs = [*zip(str(kept).split("."), run.split("."), strict=False)]
    if len(pairs) != len(parts):
        return ", ".join(parts[:-1]) + f" or {parts[-1]}"
    return " and ".join(part for part, (one, other) in zip(parts, pairs, strict=True) if one != other)


def _state(folder: str) -> tuple[object, int] | None:
    """What names the run, and how many stages are done; None where nothing is said. Raises FileError."""
    path = os.path.join(folder, STATE)
    if not os.path.lexists(path):
        return None
    try:
        state = json.loads(regular_file.read_text(path, LARGEST_STATE))
        run, stage = state["run"], state["stage"]
    except (ValueError, KeyError, TypeError):
        raise FileError("is not the state of a run", file=path, allowed="to begin anew") from None
    if type(stage) is not int or stage < 0:
        raise FileError(f"stage is {stage!r}", file=path, allowed="0 or more")
    return run, stage


def note_kept(folder: str, error: BaseException) -> None:
    """Note with an error that what was made is kept, and how to go on."""
    error.add_note(f"what was made is kept in {folder}; the same command with --resume (resume=True) goes on")


def remove_journal(folder: str) -> None:
    """Remove what runs leave in a folder, and the folder if nothing else is in it."""
    with suppress(FileNotFoundError):
        _clear(folder, OWN)
    with suppress(OSError):  # somebody put something else there
        os.rmdir(folder)


def _clear(folder: str, what: re.Pattern[str], but: str = "") -> None:
    """Remove files of these names."""
    for name in filter(what.fullmatch, os.listdir(folder)):
        if name != but:
            os.unlink(os.path.join(folder, name))
