"""What a frontier is to be made of, checked before anything is run, and about what it takes."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from octavo.backends.cores import cores, threads_of
from octavo.calibrate.texts import text_samples
from octavo.data import resolve
from octavo.errors import FileError, UsageError, shown
from octavo.evals.judge.judged_text import SHIPPED, read_judged
from octavo.evals.judge.judgement import require_there as require_texts
from octavo.evals.sensitivity import BASE_BYTES, PROBES, WINDOWS, layer_groups
from octavo.io import regular_file
from octavo.io.atomic import require_room
from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.models import read_model
from octavo.quantizers.fit.fit import (
    GRIDS_FROM,
    Offers,
    Target,
    least_bytes,
    offers,
    parse_size,
    smallest,
    too_small,
)
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_plan import QuantizeJob, require_sources
from octavo.quantizers.job.job_source import ModelSource, gguf_source
from octavo.quantizers.job.write import header_bytes
from octavo.quantizers.mix.mixing import Choices
from octavo.sizes import size
from octavo.text import Tokenizer

MadeFor = Literal["cpu", "gpu", "any"]
Method = Literal["encoder", "gptq"]
SAMPLES, CONTEXT = 128, 512
"""Windows of the calibration text, and tokens of one, at most."""
ROUNDS = 2
"""Times that what errors cost is measured again, with all weights in the types that were chosen."""
WORK, RUN, LOCK = "work", "run.json", "lock"
"""The folder within the result's where what was found is kept; in it the file that says of what, and the lock."""
MOST_OF_RUN = 1 << 16
TEMPORARY = re.compile(r"\.octavo-[0-9a-f]+\.tmp")
USUAL = "2.5,3,3.5,4,5"
"""Sizes that are made where none are given."""
BITS = re.compile(r"[0-9]*\.?[0-9]+")
SHARE_OF_RATE = 0.4
"""Of the rate of a large product of floats, what a whole model reaches."""
LOOK_S = 0.5
"""Seconds that products are timed for."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How a frontier is made.

    calibration  a text: UTF-8, a JSONL file of records, or "demo"
    made_for     what the files are to be fast on: types that a CPU unpacks to much more than a file has are left out
                 for it
    method       by which codes are made: the encoders with an importance matrix, or GPTQ in types that have levels for
                 it, which is nearer on texts like the calibration text and further off on others
    samples, context  windows of the text, and tokens of one (default: CONTEXT, or the model's)
    probes       windows that costs of errors are measured on, as far as there is memory for what is predicted there
    groups       of weights whose costs are measured together, at most
    rounds       as ROUNDS says
    text, chunks what files are judged by, and how many windows of it
    exact        the judge computes what files say (`judge`)
    speed        each file is timed
    """

    calibration: str
    made_for: MadeFor = "any"
    method: Method = "encoder"
    samples: int = SAMPLES
    context: int | None = None
    probes: int = 2 * WINDOWS
    groups: int = PROBES
    rounds: int = ROUNDS
    text: str = SHIPPED
    chunks: int | None = None
    exact: bool = False
    speed: bool = True
    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True)
class PlannedFile:
    """A file to make: its name, its target, and the bytes that its tensors may take."""

    name: str
    target: Target
    budget: int


@dataclass(frozen=True)
class Plan:
    """What is made, and what that takes.

    groups   of weights whose errors are measured together
    windows  of the text that the model is run over in all, before files are judged
    disk     bytes of the files, and of what is kept beside them while they are made
    memory   bytes of the process, about
    seconds  until files are judged, about; None on a GPU
    """

    files: Sequence[PlannedFile]
    groups: int
    windows: int
    disk: int
    memory: int
    seconds: float | None


def targets(sizes: str) -> list[Target]:
    """Targets of a list of bits a weight, and of sizes with a unit: "2.5,3,4.2GiB". Raises UsageError."""
    found = dict[str, Target]()
    for text in filter(None, map(str.strip, sizes.split(","))):
        if BITS.fullmatch(text):
            made = Target(bits_per_weight=float(text))
        else:
            made = Target(file_size=parse_size(text), said="".join(text.split()))
        if made in found.values() or file_name("", made) in found:
            raise UsageError(f"--sizes has {text} twice")
        found[file_name("", made)] = made
    if not found:
        raise UsageError(f"--sizes is {sizes!r} (allowed: bits per weight or sizes with a unit, as 2.5,3,4.2GiB)")
    return [*found.values()]


class Subject:
    """An opened model, and what its tensors may become. A context manager."""

    def __init__(self, model: str, options: Options) -> None:
        self.path = resolve(model)
        if os.path.isdir(self.path):
            raise UsageError(f"{self.path} is a folder: `octavo convert` makes a GGUF file of one")
        require_there(self.path)
        require_texts((), options.calibration, options.text)
        for name, least in (("samples", 1), ("probes", 1), ("groups", 1), ("rounds", 0)):
            if getattr(options, name) < least:
                raise UsageError(f"{getattr(options, name)} {name} (allowed: {least} or more)")
        self.file = GGUFFile.open(self.path)
        try:
            self.spec = read_model(self.file)
            self.source = gguf_source(self.file)
            most = self.spec.hparams.n_ctx_most
            self.context = min(CONTEXT, most) if options.context is None else options.context
            self.samples = text_samples(options.calibration, self.file, options.samples, self.context, 0).samples
            judged = len(read_judged(options.text, Tokenizer.from_gguf(self.file)).tokens)
            if judged < self.context or (options.chunks is not None and options.chunks < 1):
                chunks = "" if options.chunks is None else f", and {options.chunks} windows of it are to be read"
                raise UsageError(f"the text to judge by, {options.text}, has {judged} tokens{chunks} (allowed: "
                                 f"{self.context} or more, a window, of which 1 or more are read)")
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    @property
    def tokens(self) -> list[int]:
        """Of all samples, one after another."""
        return [token for sample in self.samples for token in sample]

    def offered(self, made_for: MadeFor, wanted: Sequence[Target], imatrix: Imatrix | None = None) -> Offers:
        """Types that each tensor may get; without an importance matrix those that one would allow, too."""
        values = sum(t.size for t in self.source.tensors)
        bits = min(8 * target.tensor_bytes(self.source, 0) / values for target in wanted)
        found = offers(self.source, Choices(), imatrix or _All(), GRIDS_FROM * bits)
        if made_for != "cpu":
            return found
        return {name: [f for f in kinds if f.codebook is None] for name, kinds in found.items()}


class _All(Imatrix):
    """Says that every weight of the layers has its importance, where only what is possible is asked."""

    def importance(self, name: str, shape: tuple[int, ...] | None = None) -> Any:
        return np.ones(1, np.float32) if name.startswith("blk.") else None


def plan(
    subject: Subject, folder: str, wanted: Sequence[Target], options: Options, *, leave_out: bool = False
) -> Plan:
    """What is to be made.

    leave_out  sizes that can't be are left out, with a warning, as long as there are others

    Raises UsageError for a size that can't be, or that the model has already, and for a model that is quantized;
    FileError where the disk has no room.
    """
    source = subject.source
    offered = subject.offered(options.made_for, wanted)
    stored = {t.name: t.type_name for t in source.tensors}
    changed = {name: smallest(kinds) for name, kinds in offered.items() if smallest(kinds).name != stored[name]}
    require_sources(QuantizeJob(source, "frontier", changed, None), True)
    for tensor in source.tensors:
        if tensor.name in changed and not tensor.is_float:
            raise UsageError(f"{subject.path}: tensor {shown(tensor.name)} is {tensor.type_name}: a frontier is made "
                             "of a model of floats (F32, F16 or BF16)")
    header, least = header_bytes(source, Imatrix(), method=True), least_bytes(source, offered)
    files, odd = list[PlannedFile](), list[str]()
    for target in wanted:
        budget = target.tensor_bytes(source, header)
        if budget < least:
            odd.append(too_small(source, offered, target, header) + _for_cpu(options))
        elif budget >= source.nbytes:
            odd.append(f"--sizes has {target}, but the model is {_has(source)} (allowed: less than that)")
        else:
            files.append(PlannedFile(file_name(subject.path, target), target, budget))
    if odd and not (leave_out and files):
        raise UsageError(odd[0])
    for problem in odd:
        _log.warning("%s: left out", problem)
    groups = len(layer_groups(_matrices(source, offered), options.groups))
    windows = 3 * len(subject.samples) + options.probes * (groups + 1) * (1 + options.rounds * len(files))
    windows += 2 * len(subject.samples) * len(files) * (options.method == "gptq")
    disk = sum(f.budget + header for f in files) + 3 * max(f.budget for f in files)
    if os.path.isdir(os.path.dirname(os.path.realpath(folder))):
        require_room(folder, disk)
    copies = 2 if options.rounds else 1
    memory = (1 + copies) * source.nbytes + BASE_BYTES + 16 * max(t.shape[-1] for t in source.tensors) ** 2
    return Plan(files, groups, windows, disk, memory, _seconds(source, windows, subject.context, options))


def _has(source: ModelSource) -> str:
    bits = 8 * source.nbytes / sum(t.size for t in source.tensors)
    return f"{size(source.nbytes)}, {bits:.2f} bits per weight"


def _for_cpu(options: Options) -> str:
    return "" if options.made_for != "cpu" else ", without types that a CPU has to unpack (--for any has them)"


def _matrices(source: ModelSource, offered: Offers) -> list[str]:
    return [t.name for t in source.tensors if t.name in offered]


def _seconds(source: ModelSource, windows: int, context: int, options: Options) -> float | None:
    """About how long windows take on the CPU, by the rate of a product of floats."""
    if options.device not in ("auto", "cpu") or (options.device == "auto" and _has_gpu()):
        return None
    n, threads = 768, threads_of(options.threads)
    a, taken, begun = np.ones((n, n), np.float32), list[float](), time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - begun < LOOK_S:  # others may have the machine for a while
        start = time.perf_counter()
        a @ a
        taken.append(time.perf_counter() - start)
    rate = 2 * n**3 / max(min(taken), 1e-6) * min(1.0, threads / cores())
    return 2 * sum(t.size for t in source.tensors) * context * windows / (SHARE_OF_RATE * rate)


def _has_gpu() -> bool:
    from octavo.backends import select

    return select("auto", 1)[0].name == "gpu"


def file_name(path: str, target: Target) -> str:
    """As in "model-3.5bpw.gguf", "model-4.2GiB.gguf"."""
    stem = re.sub(r"[-_.]?(f16|bf16|f32)$", "", os.path.basename(path).removesuffix(".gguf"), flags=re.IGNORECASE)
    bits = target.bits_per_weight
    return f"{stem}-{bits:.8g}bpw.gguf" if bits is not None else f"{stem}-{target.said or f'{target.file_size}B'}.gguf"


def require_folder(folder: str) -> None:
    """Raises FileError unless `folder` can be made, is empty, or is that of a run before, which has said so in it."""
    if not folder:
        raise FileError("the folder to write has no name")
    if os.path.isdir(folder):
        work = os.path.join(folder, WORK)
        inside = os.listdir(work) if os.path.isdir(work) else ()
        if set(os.listdir(folder)) <= {WORK} and all(name == LOCK or TEMPORARY.fullmatch(name) for name in inside):
            return
        if not run_before(folder):
            raise FileError("has files in it, and none of a frontier", file=folder, allowed="a folder that is new, "
                            "empty, or of the same command before")
    elif os.path.lexists(folder):
        raise FileError("is a file", file=folder, allowed="a folder that is new or empty")
    elif not os.path.isdir(os.path.dirname(os.path.realpath(folder))):
        raise FileError(f"there is no folder {os.path.dirname(os.path.realpath(folder))}", file=folder)


def run_before(folder: str) -> dict[str, str]:
    """What the frontier in `folder` is of, by part; empty where none was begun. Raises FileError where what stands
    there was written by something else."""
    path = os.path.join(folder, WORK, RUN)
    if not os.path.lexists(path):
        return {}
    try:
        found = json.loads(regular_file.read_bytes(path, MOST_OF_RUN))["frontier"]
        return {str(part): str(value) for part, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileError("does not say what a frontier is of", file=path, allowed="another folder") from None


def rounded(seconds: float) -> str:
    """As in "40 s", "25 min", "3 h"."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{math.ceil(seconds / length)} {unit}"
    return f"{max(1, math.ceil(seconds))} s"
