"""A model's weights with errors that make up for each other: GPTQ and Qronos, stage by stage over a text.

Each stage of the model is run with the weights of the stages before as they are quantized, so its Hessians are of the
inputs that the quantized model will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from octavo.backends import select
from octavo.errors import UsageError, about_tensor, shown
from octavo.evals.kept import Kept, name_of
from octavo.evals.layerwise import (
    Layerwise,
    OpenStage,
    ProductInput,
    Samples,
    note_kept,
    remove_journal,
    require_room_in,
)
from octavo.evals.layerwise.needs import kept_in_memory, require_memory, seconds, values_kept
from octavo.evals.looked_up import made_table, rows_at_a_time
from octavo.evals.method_memory import compensation_bytes
from octavo.evals.texts import named_text
from octavo.formats import QTensor, by_name, dequantize, unpack
from octavo.formats.spec import F32, U8
from octavo.graph.protocol import Backend
from octavo.graph.stages import stages
from octavo.huggingface import open_model_file
from octavo.models import ModelSpec, read_model
from octavo.quantizers.calibration.factor import factorize
from octavo.quantizers.calibration.hessian import weighed
from octavo.quantizers.calibration.outliers import channels
from octavo.quantizers.calibration.text import has_records, read_calibration
from octavo.quantizers.compensation import DAMP, compensate
from octavo.quantizers.compensation.planes import grid_of
from octavo.quantizers.encoding.encoder import ENCODABLE, encode
from octavo.quantizers.job.about import About
from octavo.quantizers.job.made import AllMade, Made
from octavo.quantizers.job.method import Takes
from octavo.quantizers.job.plan import Job
from octavo.quantizers.job.starved import Starved
from octavo.quantizers.placed import is_tensor, on_host
from octavo.text import Tokenizer

Kind = Literal["gptq", "qronos"]
KINDS: tuple[Kind, ...] = ("gptq", "qronos")
SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""
LARGE = 1 << 30
"""Bytes of a model's tensors from which it takes so long that its run is kept in any case."""
TIED = "token_embd.weight"
"""The embedding: its rows are looked up, and no Hessian tells what errors cost there, also where it is the output."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Compensation:
    """A method of `quantize_file`: codes whose errors cancel over a text's activations.

    text      a file of UTF-8 text, a JSONL file, or "demo"; apart from what the result is judged by
    kind      "gptq": errors are those against the same inputs; "qronos": against what the original model is given
    samples   windows of the text that are run, at most
    context   tokens of a window (default: CONTEXT, or what the model was made for)
    device, threads  as of `octavo.load`
    progress  is told a tensor's name, and how much of the model was run
    work      a folder in which what is made of a model of LARGE bytes, or with `resume`, is kept until all is
    resume    go on from what a run that was killed has left in `work`; it gives the same bytes

    Rows of the embedding are made first, see `looked_up`, and looked up as they were made. Weights that no product
    reads, those whose scales lie beside them, and experts that met fewer tokens than they have inputs are left to the
    encoder. Raises UsageError for formats that errors can't be made up for in, for a text shorter than a window, and as
    loading a model does; NonFiniteError naming a weight; HostMemoryError and FileError where memory and disk do not
    hold what it takes.
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

    def __call__(self, job: Job) -> AllMade:
        if self.kind not in KINDS:
            raise UsageError(f"method {self.kind!r} (allowed: {', '.join(KINDS)})")
        require_levels(job)
        with open_model_file(job.source.path) as file:
            spec = read_model(file)
            samples = self._samples(spec, Tokenizer.from_gguf(file))
            about = About.of(self.kind, self.text, samples.tokens)
            backends = select(self.device, self.threads)
            self._require_room(job, spec, samples, backends)
            if self.work is None or not self._keeps(job):
                return AllMade(self._made(job, spec, samples, backends, None), about)
            name = name_of(spec, samples, job, self.kind, *(b.name for b in backends))
            kept = Kept(self.work, name, resume=self.resume)
            try:
                made = self._made(job, spec, samples, backends, kept)
            except BaseException as error:
                kept.journal.stop(error)
                raise
            kept.close()
            return AllMade(made, about)

    def takes(self, job: Job) -> Takes:
        """What a call takes, with as many whole windows as are asked for; the text is not read. Raises as that does."""
        require_levels(job)
        with open_model_file(job.source.path) as file:
            spec = read_model(file)
            samples = Samples([[0] * self._window(spec)] * self.samples)
            run = Layerwise(spec, select(self.device, self.threads), samples, original=self.kind == "qronos")
            return Takes(*self._memory_and_disk(job, run), seconds(run, hessians=True))

    def _memory_and_disk(self, job: Job, run: Layerwise) -> tuple[int, int]:
        """Bytes that a call takes."""
        shapes = {t.name: t.shape for t in job.tensors if _compensated(job, t.name) or _is_table(job, t.name)}
        made = sum(job.types[name].row_bytes(shape[-1]) * prod(shape[:-1]) for name, shape in shapes.items())
        if TIED in shapes:
            rows, k = shapes[TIED]
            shapes[TIED] = (min(rows, rows_at_a_time(k)), k)
        keeps, values = self._keeps(job), values_kept(run)
        kept = made + kept_in_memory(run, folder=keeps)
        memory = compensation_bytes(run, shapes, len({job.types[name] for name in shapes}), kept, self.threads)
        return memory, values + made if keeps else 0

    def _require_room(self, job: Job, spec: ModelSpec, samples: Samples, backends: Sequence[Backend]) -> None:
        """Raise HostMemoryError and FileError where memory, and the disk of `work`, do not hold what a call takes."""
        run = Layerwise(spec, backends, samples, original=self.kind == "qronos")
        memory, disk = self._memory_and_disk(job, run)
        require_memory(memory, "the method")
        if self.work is not None and disk:
            require_room_in(self.work, disk)

    def written(self) -> None:
        """Remove what was kept: the file is there."""
        if self.work is not None:
            remove_journal(self.work)

    def failed(self, job: Job, error: BaseException) -> None:
        """Note with an error that came while the file was written that all is kept, if it is."""
        if self.work is not None and self._keeps(job):
            note_kept(self.work, error)

    def _keeps(self, job: Job) -> bool:
        """Whether what is made is kept in a folder until all is."""
        return self.work is not None and (self.resume or job.source.nbytes >= LARGE)

    def _made(
        self, job: Job, spec: ModelSpec, samples: Samples, backends: Sequence[Backend], kept: Kept | None
    ) -> dict[str, Made]:
        """All tensors, those that are kept and those of the stages that are left."""
        made = {} if kept is None else kept.read()
        made |= self._table(job, spec, samples, kept, made)
        left = {name for name in job.types if _compensated(job, name)} - made.keys()
        if not left:
            return made
        run = Layerwise(
            spec, backends, samples, original=self.kind == "qronos", tables=_tables(job, spec, made),
            journal=None if kept is None else kept.journal, made=partial(_values, job, spec, dict(made)),
            progress=None if self.progress is None else self._tell,
        )  # fmt: skip
        for stage in run.run():
            found = dict(self._of_stage(job, stage))
            made |= found
            left -= found.keys()
            if kept is not None:
                kept.write(stage.number, found)
            if not left:
                break  # what comes after only leads to weights that are left to the encoder
        return made

    def _table(
        self, job: Job, spec: ModelSpec, samples: Samples, kept: Kept | None, made: Mapping[str, Made]
    ) -> dict[str, Made]:
        """The embedding, if it is to be made and is not there yet."""
        if TIED in made or not _is_table(job, TIED):
            return {}
        shape = spec.file.tensors[TIED].shape
        parts, weights = stages(spec.graph(n_ctx=samples.longest)), _importance(job, TIED, shape, None)
        found = made_table(spec.file.tensor(TIED), job.types[TIED], parts, weights, self.threads)
        rows = {} if found is None else {TIED: found}
        if kept is not None and not kept.journal.stage:
            kept.write(0, rows)
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

    def _of_stage(self, job: Job, stage: OpenStage) -> Iterator[tuple[str, Made]]:
        """The stage's weights in their formats, put in their places in the run."""
        for given in stage.inputs:
            wanted = [name for name in given.names if _compensated(job, name)]
            parts: dict[str, list[_Part]] = {name: [] for name in wanted}
            met = channels(given.absmax()) if wanted else None
            for expert in (range(given.experts) or (None,)) if wanted else ():
                for name, part in self._of_input(job, stage, given, expert, wanted):
                    parts[name].append(part)
            for name, found in parts.items():
                shape = stage.tensor(name).shape
                packed = np.stack([part.packed for part in found]).reshape(*shape[:-1], -1)
                fmt = job.types[name]
                stage.replace(name, _placed(QTensor(fmt, shape, packed, name), stage.device))
                sums = [sum(column) for column in zip(*(part.sums for part in found), strict=True)]
                signal = sums[2] or 1.0
                starved = tuple(part.starved for part in found if part.starved is not None)
                yield name, Made(packed, math.sqrt(sums[1] / signal), math.sqrt(sums[0] / signal), met, starved)

    def _of_input(
        self, job: Job, stage: OpenStage, given: ProductInput, expert: int | None, names: list[str]
    ) -> Iterator[tuple[str, _Part]]:
        """Of an input, or an expert's, each weight that reads it."""
        tokens, matrix, cross = _sums(given, expert, both=self.kind == "qronos")
        factor = factorize(matrix, "act", DAMP) if expert is None or tokens >= given.size else None
        starved = None
        if factor is None and expert is not None:
            starved = Starved(given.names[0], expert, tokens, "the encoder alone")
        for name in names:
            weight, fmt, shape = stage.part(name, expert), job.types[name], stage.tensor(name).shape
            weights, power = _importance(job, name, shape, expert), _given(weight, matrix)
            if factor is None:
                values, diagonal = on_host(weight), on_host(matrix.diagonal())
                weights = diagonal if weights is None and tokens else weights
                with about_tensor(name, expert):
                    packed = encode(values, fmt, importance=weights, threads=self.threads)
                lost = _given(dequantize(QTensor(fmt, values.shape, packed)) - values, on_host(matrix))
                yield name, _Part(packed, (lost, lost, power), starved)
                continue
            with about_tensor(name, expert):
                found = compensate(
                    weight, matrix, fmt, importance=weights, cross=cross, factor=factor, threads=self.threads
                )
            yield name, _Part(found.packed, (float(found.before.sum()), float(found.after.sum()), power))


@dataclass(frozen=True, eq=False)
class _Part:
    """Packed rows [N, bytes], and sums of squares: errors before and after, and what products give."""

    packed: U8
    sums: tuple[float, float, float]
    starved: Starved | None = None


def _sums(given: ProductInput, expert: int | None, *, both: bool) -> tuple[int, Any, Any]:
    """Tokens of an input, or of an expert's, the Hessian, and with `both` products with what the original model gives:
    arrays, or tensors where sums are made on a device."""
    found: Any
    if both:
        found = given.cross(expert) if given.device is None else given.tensor_cross(expert)
        return found.tokens, found.hessian.matrix(), found.cross()
    found = given.hessian(expert) if given.device is None else given.tensor_hessian(expert)
    return found.tokens, found.matrix(), None


def _given(weight: Any, hessian: Any) -> float:
    """The mean square of what a product of weights [N, K] gives, added up over N."""
    if is_tensor(weight):
        return float(((weight @ hessian.float()) * weight).sum())
    return float(weighed(weight, hessian).sum())


def _placed(stored: QTensor, device: str | None) -> Any:
    """The values of a weight where weights are made."""
    if device is None or stored.format.pack is None:
        return dequantize(stored)
    from octavo.quantizers.encoding.tensors import TensorPlanes, decoded

    flat = QTensor(
        stored.format, (prod(stored.shape[:-1]), stored.shape[-1]), stored.data.reshape(-1, stored.data.shape[-1])
    )
    return decoded(TensorPlanes.of(unpack(flat), device), stored.format).view(stored.shape)


def _values(job: Job, spec: ModelSpec, made: Mapping[str, Made], name: str) -> F32 | None:
    """The values of a weight that was made, None for others."""
    if name not in made:
        return None
    return dequantize(made[name].tensor(job.types[name], spec.file.tensors[name].shape))


def _compensated(job: Job, name: str) -> bool:
    """Whether a weight is one that errors are made up for in, if a product reads it."""
    return name != TIED and _has_levels(job, name)


def _is_table(job: Job, name: str) -> bool:
    """Whether a weight is one whose rows are looked up, and made so that their errors make up for each other."""
    return name == TIED and _has_levels(job, name)


def _has_levels(job: Job, name: str) -> bool:
    if name not in job.types or grid_of(job.types[name]) is None:
        return False
    return all(tensor.scale is None for tensor in job.source.tensors if tensor.name == name)


def _tables(job: Job, spec: ModelSpec, made: Mapping[str, Made]) -> dict[str, QTensor]:
    """The embedding as it was made, if it was."""
    if TIED not in made:
        return {}
    return {TIED: replace(made[TIED].tensor(job.types[TIED], spec.file.tensors[TIED].shape), name=TIED)}


def _importance(job: Job, name: str, shape: tuple[int, ...], expert: int | None) -> F32 | None:
    found = None if job.imatrix is None else job.imatrix.importance(name, shape)
    return found if found is None or expert is None else found[expert]


def require_levels(job: Job) -> None:
    """Raises UsageError where a weight gets a format that errors can't be made up for in."""
    for name, fmt in job.types.items():
        if not (fmt.is_float or name == TIED or grid_of(fmt) is not None):
            problem = f"tensor {shown(name)} becomes {fmt.name}, in which errors are not made up for"
            allowed = ", ".join(kind for kind in ENCODABLE if grid_of(by_name(kind)) is not None)
            raise UsageError(f"{problem} (allowed: {allowed}, floats; or no --method)")
