"""What a quantization has made so far, in a folder, so that one that was killed goes on to the same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal, Samples
from octavo.errors import FileError
from octavo.io.atomic import written_file
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.models import ModelSpec
from octavo.quantizers.job.gguf_method import GgufWeight
from octavo.quantizers.job.plan import Job
from octavo.quantizers.job.record import Fields, channel_values, channels_of, starved_of, starved_values

ERRORS = "errors"


class GgufStages:
    """A run's folder: how far it is, and the tensors of each stage that was done, a file for each.

    folder  is made if it is not there
    run     names what two runs must share for one to go on from the other
    resume  go on from what is there; otherwise begin anew

    Raises as `Journal` does, and FileError for a file that is not as it was written.
    """

    def __init__(self, folder: str, run: str, *, resume: bool) -> None:
        self.journal = Journal(folder, run, resume=resume)

    def read(self) -> dict[str, GgufWeight]:
        """The tensors of all stages before the one that the run goes on with."""
        made: dict[str, GgufWeight] = {}
        for stage in range(self.journal.stage):
            if os.path.exists(self._path(stage)):
                made.update(_read(self._path(stage)))
        return made

    def write(self, stage: int, made: Mapping[str, GgufWeight]) -> None:
        """Keep the tensors of a stage that is about to be run."""
        if made:
            heads = [TensorHead(name, "U8", each.data.shape) for name, each in made.items()]
            errors = json.dumps(
                {
                    name: [each.error, each.before, channel_values(each.channels) | starved_values(each.starved)]
                    for name, each in made.items()
                }
            )
            with written_file(self._path(stage)) as temporary:
                write_safetensors(temporary, heads, (each.data for each in made.values()), {ERRORS: errors})

    def _path(self, stage: int) -> str:
        return os.path.join(self.journal.folder, f"stage-{stage}.safetensors")


def _read(path: str) -> dict[str, GgufWeight]:
    file = SafetensorsFile.open(path)
    try:
        errors = {
            name: (float(error), float(before), channels_of(at := Fields(more, path, "")), starved_of(at))
            for name, (error, before, more) in json.loads(file.metadata[ERRORS]).items()
        }
        return {name: GgufWeight(tensor.array(), *errors[name]) for name, tensor in file.tensors.items()}
    except (KeyError, ValueError, TypeError):
        raise FileError("is not what a quantization keeps", file=path, field=ERRORS, allowed="to begin anew") from None


def name_of(spec: ModelSpec, samples: Samples, job: Job, *options: object) -> str:
    """Names a run: the model, types and importances that are wished for, samples, options."""
    digest = blake2b(digest_size=16)
    for name, fmt in sorted(job.types.items()):
        digest.update(f"{name} {fmt.name}\n".encode())
        importance = None if job.imatrix is None else job.imatrix.importance(name)
        if importance is not None:
            digest.update(np.ascontiguousarray(importance).tobytes())
    return run_name(spec.file, samples, digest.hexdigest(), *options)
