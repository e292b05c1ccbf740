"""A model's weights with errors that make up for each other: GPTQ and Qronos, stage by stage over a text.

Each stage of the model is run with the weights of the stages before as they are quantized, so its Hessians are of the
inputs that the quantized model will have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Literal

import numpy as np

from octavo.backends import select
from octavo.calibrate.gguf.gguf_weights import (
    TIED,
    embedding_rows,
    importance_of,
    is_embedding,
    stage_weights,
    takes_gptq,
)
from octavo.calibrate.methods.gptq.sweep import grid_of
from octavo.calibrate.row_batches import memory_told
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal, Layerwise, Samples
from octavo.calibrate.runner.journal import stage_files, stage_path, write_file
from octavo.calibrate.texts import has_records, named_text, read_calibration
from octavo.errors import UsageError, shown
from octavo.formats import QTensor, by_name, dequantize
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.graph.stages import stages
from octavo.huggingface import open_model_file
from octavo.models import ModelSpec, read_model
from octavo.quantizers.encoding.encoder import ENCODABLE
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.method_result import GgufResult, GgufWeight, MethodRun
from octavo.text import Tokenizer

Kind = Literal["gptq", "qronos"]
KINDS: tuple[Kind, ...] = ("gptq", "qronos")
SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GgufMethod:
    """A method of `quantize_file`: codes whose errors cancel over a text's activations.

    text      a file of UTF-8 text, a JSONL file, or "demo"; apart from what the result is judged by
    kind      "gptq": errors are those against the same inputs; "qronos": against what the original model is given
    samples   windows of the text that are run, at most
    context   tokens of a window (default: CONTEXT, or what the model was made for)
    device, threads  as of `octavo.load`
    progress  is told a tensor's name, and how much of the model was run
    work      a folder in which what is made is kept until all is
    resume    go on from what a run that was killed has left in `work`; it gives the same bytes

    Rows of the embedding are made first, see `embedding_gptq`, and looked up as they were made. Weights that no product
    reads, those whose scales lie beside them, and experts that met fewer tokens than they have inputs are left to the
    encoder. Raises UsageError for formats that errors can't be made up for in, for a text shorter than a window, and as
    loading a model does; NonFiniteError naming a weight; HostMemoryError, DeviceMemoryError and FileError where memory
    or disk do not hold what it takes.
    """

    text: str
    kind: Kind = "gptq"
    samples: int = SAMPLES
    context: int | None = None
    device: str = "auto"
    threads: int | None = None
    progress: Progress | None = None
    work: str | None = None
    resume: bool = False

    def __call__(self, job: QuantizeJob) -> GgufResult:
        self.require(job)
        with open_model_file(job.source.path) as file:
            spec = read_model(file)
            samples = self._samples(spec, Tokenizer.from_gguf(file))
            about = MethodRun.of(self.kind, self.text, samples.tokens)
            backends = select(self.device, self.threads)
            if self.work is None:
                return GgufResult(self._make_all(job, spec, samples, backends, None), about)
            name = _run_name(spec, samples, job, self.kind, *(b.name for b in backends))
            journal = Journal(self.work, name, resume=self.resume)
            try:
                made = self._make_all(job, spec, samples, backends, journal)
            except BaseException as error:
                journal.stop(error)
                raise
            return GgufResult(made, about, journal.end)

    def require(self, job: QuantizeJob) -> None:
        """Raise UsageError for an unknown kind, and for formats that errors can't be made up for in."""
        if self.kind not in KINDS:
            raise UsageError(f"method {self.kind!r} (allowed: {', '.join(KINDS)})")
        require_levels(job)

    @memory_told("the method")
    def _make_all(
        self, job: QuantizeJob, spec: ModelSpec, samples: Samples, backends: Sequence[Backend], journal: Journal | None
    ) -> dict[str, GgufWeight]:
        """All tensors, those that are kept and those of the stages that are left."""
        made = dict[str, GgufWeight]()
        for kept in () if journal is None else stage_files(journal.folder, journal.stage, dict[str, GgufWeight]):
            made |= kept
        made |= self._table(job, spec, samples, journal, made)
        left = {name for name in job.types if takes_gptq(job, name)} - made.keys()
        if not left:
            return made
        run = Layerwise(
            spec, backends, samples, original=self.kind == "qronos", tables=_tables(job, spec, made),
            journal=journal, made=partial(_values, job, spec, dict(made)),
            progress=None if self.progress is None else self._tell,
        )
        for stage in run.run():
            found = dict(stage_weights(job, stage, corrects=self.kind == "qronos", threads=self.threads))
            made |= found
            left -= found.keys()
            _keep(journal, stage.number, found)
            if not left:
                break  # what comes after only leads to weights that are left to the encoder
        return made

    def _table(
        self, job: QuantizeJob, spec: ModelSpec, samples: Samples, journal: Journal | None,
        made: Mapping[str, GgufWeight],
    ) -> dict[str, GgufWeight]:
        """The embedding, if it is to be made and is not there yet."""
        if TIED in made or not is_embedding(job, TIED):
            return {}
        shape = spec.file.tensors[TIED].shape
        parts, weights = stages(spec.graph(n_ctx=samples.longest)), importance_of(job, TIED, shape, None)
        found = embedding_rows(spec.file.tensor(TIED), job.types[TIED], parts, weights, self.threads)
        rows = {} if found is None else {TIED: found}
        if journal is not None and not journal.stage:
            _keep(journal, 0, rows)
        return rows

    def _tell(self, done: int, total: int) -> None:
        assert self.progress is not None
        self.progress("calibration", done, total)

    def _window(self, spec: ModelSpec) -> int:
        """Tokens of a window. Raises UsageError for more than the model was made for, and for no samples."""
        most = spec.hparams.n_ctx_most
        context = min(CONTEXT, most) if self.context is None else self.context
        if not 1 <= context <= most or self.samples < 1:
            given = f"{self.samples} samples of {context} tokens"
            raise UsageError(f"{given} (allowed: 1 or more, of 1 to {most}, what the model was made for)")
        return context

    def _samples(self, spec: ModelSpec, tokenizer: Tokenizer) -> Samples:
        """Windows of the text, evenly spaced, each with BOS first where the model wants one; of JSONL its records."""
        context = self._window(spec)
        if has_records(self.text):
            return Samples(read_calibration(self.text, tokenizer, samples=self.samples, context=context).samples)
        tokens = named_text(self.text, tokenizer, "train").tokens
        count = len(tokens) // context
        if not count:
            raise UsageError(f"the text has {len(tokens)} tokens (allowed: {context} or more, a window)")
        chosen = np.unique(np.linspace(0, count - 1, min(count, self.samples)).astype(int))
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        return Samples([bos + tokens[i * context + len(bos) : (i + 1) * context] for i in chosen.tolist()])


def _keep(journal: Journal | None, stage: int, made: Mapping[str, GgufWeight]) -> None:
    """Keep the tensors of a stage that is about to be run."""
    if made and journal is not None:
        write_file(stage_path(journal.folder, stage), made)


def _run_name(spec: ModelSpec, samples: Samples, job: QuantizeJob, *options: object) -> str:
    """Names a run: the model, types and importances that are wished for, samples, options."""
    digest = blake2b(digest_size=16)
    for name, fmt in sorted(job.types.items()):
        digest.update(f"{name} {fmt.name}\n".encode())
        importance = None if job.imatrix is None else job.imatrix.importance(name)
        if importance is not None:
            digest.update(np.ascontiguousarray(importance).tobytes())
    return run_name(spec.file, samples, digest.hexdigest(), *options)


def _values(job: QuantizeJob, spec: ModelSpec, made: Mapping[str, GgufWeight], name: str) -> F32 | None:
    """The values of a weight that was made, None for others."""
    if name not in made:
        return None
    return dequantize(made[name].tensor(job.types[name], spec.file.tensors[name].shape))


def _tables(job: QuantizeJob, spec: ModelSpec, made: Mapping[str, GgufWeight]) -> dict[str, QTensor]:
    """The embedding as it was made, if it was."""
    if TIED not in made:
        return {}
    return {TIED: replace(made[TIED].tensor(job.types[TIED], spec.file.tensors[TIED].shape), name=TIED)}


def require_levels(job: QuantizeJob) -> None:
    """Raises UsageError where a weight gets a format that errors can't be made up for in."""
    for name, fmt in job.types.items():
        if not (fmt.is_float or name == TIED or grid_of(fmt) is not None):
            problem = f"tensor {shown(name)} becomes {fmt.name}, a format that GPTQ has no levels for"
            allowed = ", ".join(kind for kind in ENCODABLE if grid_of(by_name(kind)) is not None)
            raise UsageError(f"{problem} (allowed: {allowed}, floats; or no --method)")
