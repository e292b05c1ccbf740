"""What makes tensors of a job in a way of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from octavo.quantizers.job.made import Made
from octavo.quantizers.job.plan import Job


class Method(Protocol):
    """What makes tensors of a job that is about to be done, by name; an encoder makes those that it leaves out."""

    def __call__(self, job: Job, /) -> Mapping[str, Made]: ...


@runtime_checkable
class KeepsWork(Protocol):
    """A method that keeps what it has made until the file is there."""

    def written(self) -> None: ...
