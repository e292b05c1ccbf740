"""The fastest kernels and shapes for a model's products, timed on this card: `octavo bench tune`.

For each size of matrix and number of tokens, every shape that a kernel states (`Shape.space`) multiplies by weights
that no cache holds. The fastest go into the user's tuned table before the next matrix begins: what is interrupted goes
on from there. `tune_steps` then keeps what makes whole steps faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.compile.warm_up import PendingKernels
from octavo.backends.gpu.launch.call import Calls, Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.launch import product_in
from octavo.backends.gpu.matmul.product import Product, Shape
from octavo.backends.gpu.matmul.tuned import tuned_table as tuned
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import PlaneLayout, layout_of, padded
from octavo.bench import gpu, random_products
from octavo.errors import BackendError
from octavo.formats.spec import BlockFormat
from octavo.graph.protocol import Call
from octavo.graph.schedule import Schedule

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""For which choices are timed; each holds for all numbers down to the one before."""
PRODUCTS = {"mul_mat": slice(0, 1), "mul_mat_add": slice(0, 1), "mul_mat_concat": slice(1, None),
            "mul_mat_concat_add": slice(1, None)}
"""Ops, and where among their inputs the weights are."""
KERNELS = {name: kernel for name, kernel in Shape.kinds.items() if not name.startswith("experts")}
MOST_COPIES = 64
"""Of a matrix: more than others take, as small ones have to leave the cache, too."""
GAIN = 0.98
"""Of the time of the choice so far: what another one takes at most."""
KNOWN = 4
"""Choices of the nearest products that are timed beside those that kernels state."""
Timer = Callable[[Sequence[Call]], float]


class Matrix(NamedTuple):
    """What a model multiplies by: n rows of k values of a format, in a layout."""

    layout: PlaneLayout
    n: int
    k: int
    format: BlockFormat


class Timed(NamedTuple):
    """The fastest choice for some tokens, seconds of it and of the choice so far, and the least of each kernel."""

    matrix: Matrix
    tokens: int
    choice: tuned.Choice
    seconds: float
    before: float
    kernels: dict[str, float]


class Candidate(NamedTuple):
    """A choice, its shape, and seconds of a product."""

    choice: tuned.Choice
    shape: Shape
    seconds: float


def matrices(schedule: Schedule) -> list[Matrix]:
    """The different matrices that a model multiplies tokens by; neighbours of one layout are joined, as they are when
    they are loaded."""
    found: dict[tuple[PlaneLayout, int, int], Matrix] = {}
    for node in (n for split in schedule.splits for n in split.nodes if n.op in PRODUCTS):
        run = list[Matrix]()
        for leaf in node.inputs[PRODUCTS[node.op]]:
            fmt = leaf.tensor.format
            if fmt.is_float or fmt.per_row or fmt.number is not None:
                continue
            layout, (n, k) = layout_of(fmt, "f16"), leaf.tensor.shape
            if run and (run[-1].layout, run[-1].k) == (layout, k):
                run[-1] = run[-1]._replace(n=run[-1].n + n)
            else:
                run.append(Matrix(layout, n, k, fmt))
        found |= {(m.layout, m.n, m.k): m for m in run}
    return list(found.values())


def chosen(m: Matrix, tokens: int, arch: str) -> str:
    """The kernel that multiplies some tokens by a matrix, and the numbers of its shape in a tuned table."""
    p = Product(m.layout, m.n, padded(m.k), tokens, arch)
    (name, numbers), _ = next(dispatch.choices("products", p, *KERNELS.values()))
    return " ".join(map(str, (name, *numbers)))


def median(calls: Sequence[Call]) -> float:
    """Median seconds of one of some calls that run in turn on the card."""
    return statistics.median(gpu.seconds(calls, replays=5))


def about(backend: GpuBackend) -> str:
    """What a table says of where it is from."""
    return f"octavo bench tune on {backend.target.name}"


def tune(
    wanted: Sequence[Matrix], backend: GpuBackend, *, again: bool = False, timer: Timer = median
) -> Iterator[Timed]:
    """Time the choices for each matrix that the user's table lacks, write the fastest there, and yield each.

    again  also for those that it has
    """
    arch = backend.target.arch
    tuned.write(tuned.user_file(arch), tuned.users_table(arch), about(backend))  # before anything is timed for it
    for matrix in wanted:
        kind, size = tuned.class_of(matrix.layout), (matrix.n, matrix.k)
        if size in tuned.users_table(arch).get("products", {}).get(kind, {}) and not again:
            continue
        row = list[tuple[int, tuple[tuned.Choice, ...]]]()
        for tokens, ranked, before in _ranked(matrix, backend, timer):
            kernels = {one.choice[0]: one.seconds for one in reversed(ranked)}
            yield Timed(matrix, tokens, ranked[0].choice, ranked[0].seconds, before, kernels)
            row.append((tokens, _with_portable(ranked)))
        table = tuned.users_table(arch)  # as another process may have left it since
        table.setdefault("products", {}).setdefault(kind, {})[size] = tuned.merged(row)
        tuned.write(tuned.user_file(arch), table, about(backend))


def _ranked(matrix: Matrix, backend: GpuBackend, timer: Timer) -> Iterator[tuple[int, list[Candidate], float]]:
    """For each number of tokens the candidates, the fastest first, where the choice so far stays if it is about as
    fast; and seconds of that. Kernels of all are compiled from the beginning on, on all cores."""
    c = Context(backend.target)
    weight, nbytes = random_products.matrix(backend, matrix.format, matrix.n, matrix.k)
    weights = random_products.copies(weight, nbytes, MOST_COPIES)
    prepared = [_prepared(c, weights[0], tokens) for tokens in TOKENS]
    for tokens, candidates in zip(TOKENS, prepared, strict=True):
        found, so_far, problem = list[Candidate](), None, ""
        for choice, shape, multiply, kernels in reversed(candidates):  # the one so far last: no clock is low by then
            try:
                if kernels is not None:
                    kernels.finish()
                found.append(Candidate(choice, shape, timer([multiply(each) for each in weights])))
            except Exception as error:  # it takes more registers or shared memory than there are
                problem = str(error).strip().partition("\n")[0]
        if not found:
            size = f"{matrix.format.name} {matrix.n} x {matrix.k}"
            raise BackendError(f"device gpu: no kernel of {size} could be timed for {tokens} tokens: {problem}")
        if found[-1].shape == candidates[0][1]:
            so_far = found[-1]
        ranked = sorted(found, key=lambda one: one.seconds * (GAIN if one is so_far else 1.0))
        yield tokens, ranked, float("inf") if so_far is None else so_far.seconds


Prepared = tuple[tuned.Choice, Shape, Callable[[QuantWeight], Calls], PendingKernels | None]
"""A choice with its shape, what makes the calls of a product by a weight, and the kernels that these wait for."""


def _prepared(c: Context, w: QuantWeight, tokens: int) -> list[Prepared]:
    """Candidates for a product, whose kernels are being compiled."""
    p = Product(w.layout, w.n, w.kp, tokens, c.target.arch)
    x = random_products.activations(c, tokens, w.k, both=dispatch.ordered(tokens, c.target.arch))
    y = c.shared("results", tokens * w.n, torch.float32).view(tokens, w.n)

    def multiply(shape: Shape, w: QuantWeight) -> Calls:
        return Calls(product_in(c, shape, w, x, y, ()))

    return [
        (choice, shape, partial(multiply, shape), _compiling(c, multiply(shape, w)))
        for shape, choice in _choices(p).items()
    ]


def _compiling(c: Context, calls: Calls) -> PendingKernels | None:
    """The kernels of a candidate, which are compiled beside those of others; None for interpreted ones."""
    if c.target.arch == "interpreter":
        return None
    return PendingKernels([call for call in calls.calls if isinstance(call, Launch)])


def _choices(p: Product) -> dict[Shape, tuned.Choice]:
    """Shapes to time with the choices that they are made of: first the one so far, then all that kernels state."""
    stated = ((name, numbers) for name, kernel in KERNELS.items() for numbers in kernel.space(p))
    found = {shape: choice for choice, shape in islice(dispatch.choices("products", p, *KERNELS.values()), KNOWN)}
    for name, numbers in stated:
        shape = KERNELS[name].of(p, *numbers)
        if shape is not None:
            found.setdefault(shape, (name, numbers))
    return found


def _with_portable(ranked: Sequence[Candidate]) -> tuple[tuned.Choice, ...]:
    """The fastest, and the fastest of each portable kernel, for where that one is not; of tiles of 256 tokens, which
    some numbers of tokens do not fill, also the fastest of 128."""
    first, *rest = ranked
    cell = [first]
    if getattr(first.shape, "block_m", 0) == 256:
        cell += [one for one in rest if getattr(one.shape, "block_m", 0) == 128][:1]
    for one in rest:
        if not one.choice[0].startswith("w4a16") and one.choice[0] not in {other.choice[0] for other in cell}:
            cell.append(one)
    return tuple(one.choice for one in cell)
