"""Memory that methods take: what is there while scales are searched for, while weights are made and written.

Bytes of arrays that are as large as matrices are counted as the code has them; see the functions that are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from octavo.backends.cores import cores
from octavo.evals.layerwise import Layerwise
from octavo.evals.layerwise.memory import CHANGED, process_bytes, read_bytes, stage_bytes
from octavo.evals.scheme_weights import CLIPPED, JUDGED
from octavo.evals.smoothing import TOKENS
from octavo.graph.stages import Stage
from octavo.huggingface.coded import row_parts as rounded_parts
from octavo.io.gguf import GGUFFile
from octavo.quantizers.calibration.hessian import hessian_bytes
from octavo.quantizers.calibration.shared import LARGEST_DOUBLE
from octavo.quantizers.compensation.compensate import row_parts
from octavo.quantizers.fold import ChangedFile
from octavo.quantizers.smoothing.pair import OUTPUTS
from octavo.quantizers.smoothing.static import LARGEST_GRAM

COMPENSATOR, ENCODER = 8 << 20, 3 << 20
"""Bytes of the kernels that make up for errors, and of those that a format of GGUF has of its own."""
MADE, ROUNDED = 36, 32
"""Bytes beside a value of rows while errors of them are made up for, and while they are rounded."""
ON_HOST = 4
"""Bytes of a value while codes from a device are packed, or a weight is left to its encoder."""


@dataclass(frozen=True)
class Inputs:
    """The weights of a stage that are made of one input: their rows N, inputs K, and experts, 0 for plain ones.

    stored  bytes of each weight while its values are read
    """

    rows: tuple[int, ...]
    size: int
    experts: int
    stored: tuple[int, ...]

    @property
    def matrices(self) -> int:
        return len(self.rows)

    @property
    def values(self) -> int:
        """Values of all weights."""
        return max(1, self.experts) * sum(self.rows) * self.size

    @property
    def largest(self) -> int:
        """Values of the largest weight, of one expert."""
        return max(self.rows) * self.size


def inputs_of(run: Layerwise, stage: Stage, names: Callable[[str], bool]) -> list[Inputs]:
    """The inputs of a stage, with those weights that are made."""
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for product in stage.products:
        tensor = product.inputs[0].tensor
        if names(tensor.name):
            key = tuple(id(node) for node in product.inputs[1:])
            found.setdefault(key, []).append((tensor.shape, read_bytes(run.spec.file, tensor)))
    return [
        Inputs(tuple(shape[-2] for shape, _ in of), of[0][0][-1], of[0][0][0] if len(of[0][0]) == 3 else 0,
               tuple(stored for _, stored in of))
        for of in found.values()
    ]


def hessian_peak(k: int) -> int:
    """Bytes while a Hessian is added up and factorized, see `factorize`: itself and its factor, then m."""
    return 20 * k * k if k <= LARGEST_DOUBLE else 8 * k * k


def cross_bytes(k: int) -> int:
    """Bytes of a `CrossHessian`."""
    return 16 * k * k if k <= LARGEST_DOUBLE else 8 * k * k


def compensated_bytes(n: int, k: int, threads: int | None, *, cross: bool) -> int:
    """Bytes beside a weight [N, K], its Hessian's factor and what is made of it, in `compensate`."""
    rows: int = row_parts(n, k, threads)[0].stop
    scratch = MADE * rows * k
    if not cross:
        return scratch
    matrices = (16 if k <= LARGEST_DOUBLE else 8) * k * k  # the Hessian and the products with the original's vectors
    return matrices + max(scratch + 4 * n * k, 16 * k * k + 12 * n * k)


@dataclass(frozen=True)
class Making:
    """How weights of a checkpoint are made.

    compensates  errors of rows make up for each other in some way that is tried
    cross    the original model is run beside this one
    clips    groups are clipped
    ways     that are tried for each weight
    static   activations get static scales, tried as well in another scheme if `other`
    scales   scales of channels are searched for, of products with rounded activations if `tokens`
    by_rows  as of `Pair`
    clipped  values of a row that are clipped alike; None: all
    threads  that make weights
    """

    compensates: bool
    cross: bool
    clips: bool
    ways: int
    static: bool
    other: bool
    scales: bool
    tokens: bool
    by_rows: bool
    clipped: int | None
    threads: int | None

    def group(self, k: int) -> int:
        """Values of a row that are clipped alike."""
        return k if self.clipped is None or k % self.clipped else self.clipped

    def stage(self, given: Sequence[Inputs], tokens: int) -> int:
        """Bytes while the weights of a stage are made, input by input; what was made is there until it is run."""
        before = most = 0
        for inputs in given:
            static = self._static_bytes(inputs) if self.static and not inputs.experts else 0
            made = max(static, self._making_bytes(inputs, tokens))
            replaced = 5 * inputs.values + inputs.values // inputs.matrices  # values are checked, a byte each
            most = max(most, before + made, before + replaced)
            before += 5 * inputs.values
        return most

    def on_device(self, given: Sequence[Inputs]) -> int:
        """`stage` where a device has matrices and values: codes are here, and a weight that is rounded or clipped."""
        codes = sum(inputs.values for inputs in given)
        part = 0
        for inputs in given:
            if self.clips or self.ways > 1 or not self.compensates:
                part = max(part, 4 * inputs.largest + ROUNDED * _slab(inputs.rows, inputs.size))
            if self.clips:
                part = max(part, 6 * inputs.largest + self._clipping(inputs))
            if self.static and not inputs.experts:
                part = max(part, self._static_bytes(inputs))
        return codes + part

    def _making_bytes(self, inputs: Inputs, tokens: int) -> int:
        """In `made_weights`, with the largest weight as the last one."""
        k, largest = inputs.size, inputs.largest
        codes = inputs.values - largest
        held = max(inputs.stored) if not inputs.experts else sum(inputs.stored)
        matrices = after = 0
        if self.compensates:
            sums = cross_bytes(k) if self.cross else 0
            matrices, after = sums + hessian_peak(k), sums + 8 * k * k
        elif not self.cross and self.ways == 1 and tokens >= k:
            matrices, after = 2 * hessian_bytes(k), 4 * k * k
        reading = 4 * largest + (held if not inputs.experts else 0)
        weight = 4 * largest + (held if inputs.experts else 0)
        rounding = weight + 2 * largest + ROUNDED * _slab(inputs.rows, k)
        factored = weight + largest + matrices
        making = weight + 2 * largest + after
        if self.compensates:
            making = weight + 3 * largest + after
            making += compensated_bytes(max(inputs.rows), k, self.threads, cross=self.cross)
        if self.clips:
            making = max(making, weight + 6 * largest + after + self._clipping(inputs))
        judging = weight + (1 + self.ways) * largest + after + 4 * largest + 16 * JUDGED * max(inputs.rows)
        return codes + max(reading + after, rounding + after, factored, making, judging)

    def _clipping(self, inputs: Inputs) -> int:
        k = inputs.size
        return 8 * CLIPPED * k + 4 * k * self.group(k) + cores() * ROUNDED * _slab(inputs.rows, k)

    def _static_bytes(self, inputs: Inputs) -> int:
        """In `static_input`."""
        gram = 8 * inputs.size**2 if inputs.size <= LARGEST_GRAM else 0
        weights = 4 * inputs.values + max(inputs.stored)
        return weights + max(gram, 8 * inputs.largest if self.other else 0) + 32 * TOKENS * inputs.size

    def search(self, given: Sequence[Inputs]) -> int:
        """Bytes while scales of channels are searched for, see `smooth_model`."""
        return max((self._searching(inputs) for inputs in given), default=0)

    def _searching(self, inputs: Inputs) -> int:
        k, n = inputs.size, max(inputs.rows) * max(1, inputs.experts)
        weights = 4 * inputs.values + max(inputs.stored)
        multiplied = self.tokens or k > TOKENS  # else errors are found by a matrix of sums, see `Pair.gram`
        outputs = 4 * TOKENS * inputs.values // k if multiplied else 0
        taken: int = rounded_parts(n, k + OUTPUTS * TOKENS)[0].stop if self.by_rows else n
        tried = ((10 if self.tokens else 6) * k + 12 * taken) * TOKENS if multiplied else 0
        return weights + outputs + 4 * TOKENS * k + cores() * (tried + (ROUNDED + 2) * taken * k)


def _slab(rows: Sequence[int], k: int) -> int:
    """Values that are rounded together."""
    taken: int = rounded_parts(max(rows), k)[0].stop
    return k * taken


def written_bytes(file: GGUFFile, made: Collection[str]) -> int:
    """Bytes of the largest tensor while it is written: of those that are `made` codes, in other order, and packed."""
    sizes = [3 * math.prod(info.shape) for name, info in file.tensors.items() if name in made]
    for name, info in file.tensors.items():
        if name not in made:
            changed = isinstance(file, ChangedFile) and name in file.changes
            sizes.append(CHANGED * 4 * math.prod(info.shape) if changed else info.nbytes)
    return max(sizes, default=0)


def method_bytes(run: Layerwise, making: Making, names: Callable[[str], bool]) -> int:
    """Bytes of a process in which a method makes weights of these names for a checkpoint, without the
    values of all samples."""
    tokens, most, searching = run.samples.all["tokens"], 0, 0
    made = {name for name in run.spec.file.tensors if names(name)}
    for stage in run.stages:
        given = inputs_of(run, stage, names)
        values = sum(inputs.values for inputs in given)
        making_them = making.stage(given, tokens) if run.device is None else making.on_device(given)
        most = max(most, making_them, stage_bytes(run, stage, made) + values)
        if making.scales:
            searching = max(searching, making.search(given), stage_bytes(run, stage))
    most = max(most, written_bytes(run.spec.file, made))
    largest = max((math.prod(run.spec.file.tensors[name].shape[-2:]) for name in made), default=0)
    process = partial(process_bytes, largest, apart=making.scales or making.clips, device=run.device)
    if run.device is not None:  # what makes weights is loaded after the search
        return max(process(makes=making.compensates) + most, process() + searching)
    kernels = COMPENSATOR if making.compensates else 0
    return process() + kernels + max(most, searching)


def _made_alone(n: int, k: int, threads: int | None, *, cross: bool) -> int:
    """Bytes while a weight [N, K] of a GGUF file is made, with the Hessian of its input and the factor."""
    double = k <= LARGEST_DOUBLE
    peak, after = (20 if double else 12) * k * k, (16 if double else 12) * k * k
    sums = cross_bytes(k) if cross else 0
    made = 4 * n * k + compensated_bytes(n, k, threads, cross=cross)
    return max(sums + peak, sums + after + max(made, (20 if double else 12) * n * k))


def compensation_bytes(
    run: Layerwise, shapes: Mapping[str, tuple[int, ...]], formats: int, kept: int, threads: int | None
) -> int:
    """Bytes of a process in which weights [N, K] of a GGUF file are made one after the other.

    shapes  of all weights by name, of experts [E, N, K]; those of no product, whose rows are looked up, come first
    formats  that these get
    kept    bytes of what is there in any case: values of all samples that are in memory, and weights that were made
    """
    cross, most = len(run.streams) > 1, 0
    names = [[p.inputs[0].name for p in stage.products if p.inputs[0].name in shapes] for stage in run.stages]
    read = {name for of in names for name in of}
    for of in ([name for name in shapes if name not in read], *names):
        before = 0  # floats that the stage is to be run with
        for name in of:
            *_, n, k = shapes[name]
            if run.device is None:
                most = max(most, before + _made_alone(n, k, threads, cross=cross))
                before += 4 * math.prod(shapes[name])
            else:
                most = max(most, ON_HOST * n * k)
    largest = max((math.prod(shape[-2:]) for shape in shapes.values()), default=0)
    stage = max(stage_bytes(run, stage, {p.inputs[0].name for p in stage.products}) for stage in run.stages)
    kernels = COMPENSATOR if run.device is None else 0
    return process_bytes(largest, device=run.device, makes=True) + kernels + formats * ENCODER + max(stage, most) + kept
