"""A checkpoint that was written by a run that was killed then: all is done but to remove the run's folder."""

from __future__ import annotations

import os
from typing import Protocol

from octavo.evals.layerwise.values import stages_done
from octavo.evals.scheme_work import load_stages
from octavo.io.safetensors import Checkpoint
from octavo.quantizers.job.record import FILE, Record, record_of, rounded


class Options(Protocol):
    """Of a method, those that a record tells."""

    @property
    def kind(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def rotate(self) -> bool: ...

    @property
    def kv(self) -> str | None: ...


def is_written(dst: str, work: str, scheme: str, method: Options) -> bool:
    """Whether the folder `dst` is what a method's run came to that kept what it made in `work`, which is still there.

    It is if its record tells of the same scheme and method, and of each weight that is in `work` the same errors.
    Raises FileError and ModelError for files that are not as they were written.
    """
    stage = stages_done(work) if os.path.isdir(work) else 0
    if not stage or not os.path.isfile(os.path.join(dst, FILE)):
        return False
    checkpoint = Checkpoint.open(dst)
    record = record_of(checkpoint.json(FILE), checkpoint.path(FILE))
    made = load_stages(work, stage).made
    kept = {(name, one.how, rounded(one.before), rounded(one.error)) for name, one in made.items()}
    told = {(one.name, one.how, one.before, one.error) for one in record.weights}
    return record.target == scheme and _is_of(record, method) and kept == told != set()


def _is_of(record: Record, method: Options) -> bool:
    """Whether a record is of a method with the same options, as far as it tells them."""
    about = record.about
    wanted = method.kind, os.path.basename(method.text), method.rotate, method.kv
    return (about.method, about.text, about.rotate, about.kv) == wanted
