"""A checkpoint that was written by a run that was killed then: all is done but to remove the run's folder."""

from __future__ import annotations

import os
from collections.abc import Callable

from octavo.evals.layerwise.values import is_of_run, stages_done
from octavo.evals.scheme_work import load_stages
from octavo.io.safetensors import Checkpoint
from octavo.quantizers.job.record import FILE, record_of, rounded


def is_written(dst: str, work: str, run: Callable[[], str]) -> bool:
    """Whether the folder `dst` is what the run came to that kept what it made in `work`, which is still there, and
    that run has the name that `run` works out.

    It is if its record tells of each weight that is in `work` the same errors. Raises FileError and ModelError for
    files that are not as they were written.
    """
    stage = stages_done(work) if os.path.isdir(work) else 0
    if not stage or not os.path.isfile(os.path.join(dst, FILE)):
        return False
    checkpoint = Checkpoint.open(dst)
    record = record_of(checkpoint.json(FILE), checkpoint.path(FILE))
    made = load_stages(work, stage).made
    kept = {(name, one.how, rounded(one.before), rounded(one.error)) for name, one in made.items()}
    told = {(one.name, one.how, one.before, one.error) for one in record.weights}
    return kept == told != set() and is_of_run(work, run())
