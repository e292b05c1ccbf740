"""What makes tensors of a job in a way of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from octavo.quantizers.job.made import AllMade
from octavo.quantizers.job.plan import Job


class Method(Protocol):
    """What makes tensors of a job that is about to be done, by name; an encoder makes those that it leaves out."""

    def __call__(self, job: Job, /) -> AllMade: ...


@runtime_checkable
class KeepsWork(Protocol):
    """A method that keeps what it has made until the file is there, and is told if it can't be."""

    def written(self) -> None: ...

    def failed(self, job: Job, error: BaseException) -> None: ...


@dataclass(frozen=True)
class Takes:
    """What a method takes: bytes of memory at most beside what the process has, of files, and about so many seconds."""

    memory: int
    disk: int
    seconds: float


@runtime_checkable
class Foretells(Protocol):
    """A method that says what it takes before it is at work."""

    def takes(self, job: Job, /) -> Takes: ...
