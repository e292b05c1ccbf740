"""A GGUF model into a file of another preset: `quantize_file`."""

from __future__ import annotations

from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.io.model_path import resolve
from octavo.quantizers.imatrix.imatrix import Imatrix
from octavo.quantizers.job.importance import load_importance
from octavo.quantizers.job.job_plan import FileMethod, Progress, StrPath, plan, require_ready
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.job_source import gguf_source
from octavo.quantizers.job.write import write_model
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import find_preset


def quantize_file(
    src: StrPath,
    dst: StrPath,
    preset: str,
    *,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    method: FileMethod | None = None,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantize the GGUF model at `src` (any shard of a split one, or "demo") into the file `dst`.

    preset            as in "Q4_K_M", see `PRESETS`
    imatrix           importance weights, or the path of their file, or of a calibration's statistics
    choices           what else decides on types
    method            chooses codes otherwise than the encoders, as `octavo.calibrate.gguf.gguf_method.GgufMethod` does
    allow_requantize  quantized tensors may be quantized again, at a loss
    dry_run           nothing is written; the report has types and sizes

    Holds a tensor at a time. `dst` appears, or is replaced, when all of it is written. Raises GGUFError, ModelError or
    FileError for files that are wrong or can't be written, UsageError for what does not go together, NonFiniteError and
    QuantFormatError for values that can't be stored.
    """
    weights = load_importance(imatrix)
    src = resolve(src)
    require_there(src)
    with GGUFFile.open(src) as file:
        require_ready(dst, file.files, weights, method)
        job = plan(gguf_source(file), find_preset(preset), choices or Choices(), weights)
        return write_model(
            job, dst, method=method, allow_requantize=allow_requantize, dry_run=dry_run, threads=threads,
            progress=progress,
        )
