"""What a run has made so far of a GGUF model, so that one that was killed goes on to the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Samples
from octavo.calibrate.runner.stage_files import ABOUT, stage_files, stage_path, write_file
from octavo.errors import FileError
from octavo.models import ModelSpec
from octavo.quantizers.job.gguf_method import GgufWeight
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.quantization_record import (
    JsonFields,
    channel_values,
    channels_of,
    starved_of,
    starved_values,
)


def save_weights(folder: str, stage: int, made: Mapping[str, GgufWeight]) -> None:
    """Keep the tensors of a stage that is about to be run."""
    if made:
        arrays = {name: each.data for name, each in made.items()}
        told = {
            name: [each.error, each.before, channel_values(each.channels) | starved_values(each.starved)]
            for name, each in made.items()
        }
        write_file(stage_path(folder, stage), arrays, told)


def load_weights(folder: str, first: int) -> dict[str, GgufWeight]:
    """What `save_weights` kept of the stages before `first`. Raises FileError for a file that is not as it was."""
    made: dict[str, GgufWeight] = {}
    for file, told in stage_files(folder, first):
        try:
            for name, tensor in file.tensors.items():
                error, before, more = told[name]
                at = JsonFields(more, file.path, "")
                made[name] = GgufWeight(tensor.array(), float(error), float(before), channels_of(at), starved_of(at))
        except (KeyError, ValueError, TypeError):
            problem = "is not what a quantization keeps"
            raise FileError(problem, file=file.path, field=ABOUT, allowed="to begin anew") from None
    return made


def gguf_run_name(spec: ModelSpec, samples: Samples, job: QuantizeJob, *options: object) -> str:
    """Names a run: the model, types and importances that are wished for, samples, options."""
    digest = blake2b(digest_size=16)
    for name, fmt in sorted(job.types.items()):
        digest.update(f"{name} {fmt.name}\n".encode())
        importance = None if job.imatrix is None else job.imatrix.importance(name)
        if importance is not None:
            digest.update(np.ascontiguousarray(importance).tobytes())
    return run_name(spec.file, samples, digest.hexdigest(), *options)
