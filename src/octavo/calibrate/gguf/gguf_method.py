"""A model's weights with errors that make up for each other: GPTQ and Qronos, stage by stage over a text.

Each stage of the model is run with the weights of the stages before as they are quantized, so its Hessians are of the
inputs that the quantized model will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import prod
from typing import Any, Literal

import numpy as np

from octavo.backends import select
from octavo.calibrate.arrays import each_plane, on_device, on_host
from octavo.calibrate.hessian import CrossHessian, Hessian, Matrix, factorize, weighed
from octavo.calibrate.methods.gptq import DAMP, gptq
from octavo.calibrate.methods.gptq.gptq_quantize import values_of_planes
from octavo.calibrate.methods.gptq.grid import grid_of
from octavo.calibrate.row_batches import memory_told
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Journal, Layerwise, OpenStage, ProductInput, Samples
from octavo.calibrate.runner.journal import stage_files, stage_path, write_file
from octavo.calibrate.texts import has_records, named_text, read_calibration
from octavo.errors import UsageError, about_tensor, shown, tensor_label
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, unpack
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, U8
from octavo.graph.node import Node
from octavo.graph.protocol import Backend
from octavo.graph.stages import PRODUCTS, Stage, stages
from octavo.huggingface import open_model_file
from octavo.models import ModelSpec, read_model
from octavo.quantizers.encoding.encoder import ENCODABLE, encode
from octavo.quantizers.job.job_plan import QuantizeJob
from octavo.quantizers.job.method_result import GgufResult, GgufWeight, MethodRun, UndersampledExpert
from octavo.quantizers.statistics.outliers import channels
from octavo.text import Tokenizer

VALUES = 1 << 22
"""Values of a table that are made at a time."""
NORMS = ("rms_norm", "layer_norm")
ALONG = ("add", "mul", "copy")
"""Ops that leave channels where they are."""
TIED = "token_embd.weight"
"""The embedding: its rows are looked up, and no Hessian tells what errors cost there, also where it is the output."""
Kind = Literal["gptq", "qronos"]
KINDS: tuple[Kind, ...] = ("gptq", "qronos")
SAMPLES, CONTEXT = 32, 512
"""Windows of the text, and tokens of a window, at most."""
Progress = Callable[[str, int, int], None]


def embedding_rows(
    table: QTensor, fmt: BlockFormat, stages: Sequence[Stage], importance: F32 | None, threads: int | None
) -> GgufWeight | None:
    """A table [N, K] in a format, its rows one by one; None where no product of the first layer reads them."""
    metric = _metric(table.name, table.shape[-1], stages)
    if metric is None:
        return None
    factor, packed, sums = factorize(metric, "act", DAMP), [], np.zeros(3)
    for rows in _parts(table):
        with about_tensor(table.name):
            found = gptq(rows, metric, fmt, importance=importance, factor=factor, threads=threads)
        packed.append(found.packed)
        power = float(weighed(rows, metric).sum())
        sums += float(found.before.sum()), float(found.after.sum()), power
    before, after = (math.sqrt(lost / (sums[2] or 1.0)) for lost in sums[:2])
    return GgufWeight(np.concatenate(packed), after, before)


def _parts(table: QTensor) -> Iterator[F32]:
    step = max(1, VALUES // table.shape[-1])
    for start in range(0, table.shape[0], step):
        data = table.data[start : start + step]
        yield dequantize(QTensor(table.format, (len(data), table.shape[-1]), data))


def _metric(name: str, k: int, stages: Sequence[Stage]) -> Matrix | None:
    """[K, K], of a mean diagonal of 2: what errors of rows come to in the products that read them, and as they are."""
    total = np.zeros((k, k))
    for product in stages[1].products if len(stages) > 1 else ():
        passed = _passed(product.inputs[1], name)
        if passed is not None and len(passed) == product.inputs[0].tensor.shape[-1] == k:
            weight = _finite(product.inputs[0]).reshape(-1, k) * passed
            rows = Hessian(k, product.inputs[0].name, double=True)
            rows.add(weight)
            total += rows.matrix() / (rows.diagonal().sum() or 1.0)
    mean = total.trace() / k
    return total / mean + np.eye(k) if mean else None


def _finite(weight: Node) -> F32:
    """A weight's values. Raises NonFiniteError naming it."""
    values = dequantize(weight.tensor)
    require_finite(values, tensor_label(weight.name))
    return values


def _passed(node: Node, name: str) -> F32 | None:
    """What channels of rows of the table are multiplied with on their way to a node; None where none get there."""
    if node.op == "get_rows":
        table = node.inputs[0]
        return np.ones(table.tensor.shape[-1], np.float32) if table.op == "weight" and table.name == name else None
    if node.op in PRODUCTS or node.op not in (*NORMS, *ALONG):
        return None
    found = next((f for f in (_passed(i, name) for i in node.inputs) if f is not None), None)
    if found is None or node.op not in (*NORMS, "mul"):
        return found
    factors = [_finite(i).reshape(-1) for i in node.inputs[1:2] if i.op == "weight"]
    return found * factors[0] if factors and len(factors[0]) in (1, len(found)) else found


def stage_weights(
    job: QuantizeJob, stage: OpenStage, *, corrects: bool, threads: int | None
) -> Iterator[tuple[str, GgufWeight]]:
    """The stage's weights in their formats, put in their places in the run.

    corrects  errors are those against what the original model gives
    """
    for given in stage.inputs:
        wanted = [name for name in given.names if takes_gptq(job, name)]
        parts: dict[str, list[_GgufPart]] = {name: [] for name in wanted}
        met = channels(given.absmax()) if wanted else None
        for expert in (range(given.experts) or (None,)) if wanted else ():
            for name, part in _of_input(job, stage, given, expert, wanted, corrects, threads):
                parts[name].append(part)
        for name, found in parts.items():
            shape = stage.tensor(name).shape
            packed = np.stack([part.packed for part in found]).reshape(*shape[:-1], -1)
            fmt = job.types[name]
            stage.replace(name, _placed(QTensor(fmt, shape, packed, name), stage.device))
            sums = [sum(column) for column in zip(*(part.sums for part in found), strict=True)]
            signal = sums[2] or 1.0
            starved = tuple(part.starved for part in found if part.starved is not None)
            yield name, GgufWeight(packed, math.sqrt(sums[1] / signal), math.sqrt(sums[0] / signal), met, starved)


def _of_input(
    job: QuantizeJob, stage: OpenStage, given: ProductInput, expert: int | None, names: list[str], corrects: bool,
    threads: int | None,
) -> Iterator[tuple[str, _GgufPart]]:
    """Of an input, or an expert's, each weight that reads it."""
    sums = given.cross(expert) if corrects else given.hessian(expert)
    tokens, matrix = sums.tokens, (sums.hessian if isinstance(sums, CrossHessian) else sums).matrix()
    cross = sums.cross() if isinstance(sums, CrossHessian) else None
    factor = factorize(matrix, "act", DAMP) if expert is None or tokens >= given.size else None
    starved = None
    if factor is None and expert is not None:
        starved = UndersampledExpert(given.names[0], expert, tokens, "the encoder alone")
    for name in names:
        weight, fmt, shape = stage.part(name, expert), job.types[name], stage.tensor(name).shape
        weights, power = importance_of(job, name, shape, expert), _output_power(weight, matrix)
        if factor is None or grid_of(fmt) is None:
            values, diagonal = on_host(weight), on_host(matrix.diagonal())
            weights = diagonal if weights is None and tokens else weights
            with about_tensor(name, expert):
                packed = encode(values, fmt, importance=weights, threads=threads)
            lost = _output_power(dequantize(QTensor(fmt, values.shape, packed)) - values, on_host(matrix))
            yield name, _GgufPart(packed, (lost, lost, power), starved)
            continue
        with about_tensor(name, expert):
            found = gptq(weight, matrix, fmt, importance=weights, cross=cross, factor=factor, threads=threads)
        yield name, _GgufPart(found.packed, (float(found.before.sum()), float(found.after.sum()), power))


@dataclass(frozen=True, eq=False)
class _GgufPart:
    """Packed rows [N, bytes], and sums of squares: errors before and after, and what products give."""

    packed: U8
    sums: tuple[float, float, float]
    starved: UndersampledExpert | None = None


def _output_power(weight: Any, hessian: Any) -> float:
    """The mean square of what a product of weights [N, K] gives, added up over N."""
    return float(weighed(weight, hessian).sum())


def _placed(stored: QTensor, device: str | None) -> Any:
    """The values of a weight where weights are made."""
    if device is None or stored.format.pack is None:
        return dequantize(stored)
    flat = QTensor(
        stored.format, (prod(stored.shape[:-1]), stored.shape[-1]), stored.data.reshape(-1, stored.data.shape[-1])
    )
    planes = each_plane(lambda x: on_device(x, device), unpack(flat))
    return values_of_planes(planes, stored.format).reshape(stored.shape)


def takes_gptq(job: QuantizeJob, name: str) -> bool:
    """Whether a weight is made as the model is run, if a product reads it.

    In formats without levels that is by the encoder: what comes after has to see what it is given.
    """
    return name != TIED and name in job.types and not job.types[name].is_float and _has_no_scale(job, name)


def is_embedding(job: QuantizeJob, name: str) -> bool:
    """Whether a weight is one whose rows are looked up, and made so that their errors make up for each other."""
    return name == TIED and _has_levels(job, name)


def _has_levels(job: QuantizeJob, name: str) -> bool:
    return name in job.types and grid_of(job.types[name]) is not None and _has_no_scale(job, name)


def _has_no_scale(job: QuantizeJob, name: str) -> bool:
    return all(tensor.scale is None for tensor in job.source.tensors if tensor.name == name)


def importance_of(job: QuantizeJob, name: str, shape: tuple[int, ...], expert: int | None) -> F32 | None:
    found = None if job.imatrix is None else job.imatrix.importance(name, shape)
    return found if found is None or expert is None else found[expert]


@dataclass(frozen=True)
class GgufMethod:
    """A method of `quantize_file`: codes whose errors cancel over a text's activations.

    text      a file of UTF-8 text, a JSONL file, or "demo"; apart from what the result is judged by
    kind      "gptq": errors are those against the same inputs; "qronos": against what the original model is given
    samples   windows of the text that are run, at most
    context   tokens of a window (default: CONTEXT, or what the model was made for)
    device, threads  as of `octavo.load`
    grids     formats without levels, as IQ1 to IQ3, are left to the encoder, where they would be refused
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
    grids: bool = False

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
        if not self.grids:
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
        if journal is not None:
            run.tell_memory()
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
    """Raises UsageError where a weight gets a format that errors can't be made up for in, or none is quantized."""
    if all(fmt.is_float for fmt in job.types.values()):
        raise UsageError(f"{job.name} leaves a method nothing to quantize (allowed: quantized types, or no --method)")
    for name, fmt in job.types.items():
        if not (fmt.is_float or name == TIED or grid_of(fmt) is not None):
            problem = f"tensor {shown(name)} becomes {fmt.name}, a format that GPTQ has no levels for"
            allowed = ", ".join(kind for kind in ENCODABLE if grid_of(by_name(kind)) is not None)
            raise UsageError(f"{problem} (allowed: {allowed}, floats; or no --method)")
