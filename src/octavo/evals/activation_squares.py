"""Collecting an importance matrix: a text is run, and what each product is given is squared and added up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Samples
from octavo.calibrate.runner.journal import differing
from octavo.errors import NonFiniteError, UsageError
from octavo.evals.windows import TextWindow, windows
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Graph, Node
from octavo.io.atomic import require_target
from octavo.io.distinct_paths import MODEL, model_files, require_apart
from octavo.quantizers.imatrix import Imatrix
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import Sequence as CachedSequence
from octavo.runtime.engine.batch import Feed

SAVE_EVERY = 10

Progress = Callable[[int, int], None]
"""Is told windows done, and of how many."""

PRODUCTS = ("mul_mat", "mul_mat_id")


class Watcher:
    """Adds up squared activations by weight while a graph without fused ops is run; see `Engine.step`.

    An activation that is quantized for its products is read before that.
    """

    def __init__(self, graph: Graph, wanted: Callable[[str], bool]) -> None:
        self.found: dict[str, tuple[F32, AnyArray]] = {}
        self._wanted = wanted
        self._readers = Counter(id(_source(n.inputs[1])) for n in graph.nodes if self._counts(n))
        self._kept: dict[int, tuple[int, AnyArray]] = {}

    def _counts(self, node: Node) -> bool:
        return node.op in PRODUCTS and self._wanted(node.inputs[0].name)

    def __call__(self, node: Node, read: Callable[[int], AnyArray]) -> None:
        if node.op == "quantize" and self._readers[id(node)]:
            self._kept[id(node)] = self._readers[id(node)], np.square(read(0))
        elif self._counts(node):
            weight, x, *ids = node.inputs
            squares = self._squares(_source(x), read)
            if ids:
                self._add(weight, *by_expert(squares, read(2), int(weight.shape[0])))
            else:
                self._add(weight, squares.sum(axis=0, keepdims=True), np.array([len(squares)]))

    def _squares(self, source: Node, read: Callable[[int], AnyArray]) -> F32:
        """A product's input, squared; what is not quantized is read from the product itself."""
        readers, squares = self._kept.pop(id(source), (self._readers[id(source)], None))
        if squares is None:
            squares = np.square(read(1))
        if readers > 1:
            self._kept[id(source)] = readers - 1, squares
        return squares

    def _add(self, weight: Node, sums: F32, counts: AnyArray) -> None:
        if not np.isfinite(sums).all():
            raise NonFiniteError(f"the model computed NaN or Inf in what {weight.name} is given")
        before = self.found.get(weight.name)
        self.found[weight.name] = (sums, counts) if before is None else (before[0] + sums, before[1] + counts)


def _source(x: Node) -> Node:
    """The node that a product's input comes from, copies between backends left out."""
    while x.op == "copy":
        x = x.inputs[0]
    return x


def by_expert(squares: F32, ids: AnyArray, experts: int) -> tuple[F32, AnyArray]:
    """Squares [T, K] or [T, k, K] of tokens sent to experts ids [T, k] -> sums [E, K] and counts [E], of a token that
    is sent to one twice twice."""
    sums = np.zeros((experts, squares.shape[-1]), np.float32)
    for expert in np.unique(ids):
        chosen = ids == expert
        sums[expert] = (squares[chosen] if squares.ndim == 3 else squares[np.nonzero(chosen)[0]]).sum(axis=0)
    return sums, np.bincount(ids.reshape(-1), minlength=experts)


def collect_imatrix(
    model: Model, tokens: Sequence[int], *, name: str = "", context: int = 512, chunks: int | None = None,
    output: bool = False, path: str | os.PathLike[str] | None = None, save_every: int = SAVE_EVERY,
    restart: bool = False, progress: Progress | None = None
) -> Imatrix:
    """The importance matrix of a model over a text, in windows of `context` tokens, of which at most `chunks` are run.

    name        of the text, to be kept in the file
    output      take the output weight in too (llama.cpp's --process-output)
    path        where to save it: after each `save_every` windows and at the end, also when interrupted. If the file
                there is of the same model, text and options, the run goes on from it
    restart     begin anew whatever lies at `path`

    The model's engine must not fuse ops (`EngineConfig.fuse`). Raises UsageError for a file at `path` that is of
    another run, has more than `chunks` windows, or is the model's own, and as `windows` does; FileError where no file
    can be written there; NonFiniteError where the model computes NaN or Inf.
    """
    if model.engine.config.fuse:
        raise UsageError("the model's ops are fused, which hides activations: use EngineConfig(fuse=False)")
    if save_every < 1:
        raise UsageError(f"save_every is {save_every} (allowed: 1 or more)")
    if path is not None:
        require_target(path)
        require_apart(path, {MODEL: model_files(model.file.path, model.file.files)})
    found = windows(model, tokens, context, chunks)
    run = "" if path is None else _run_of(model, tokens, context, output)
    matrix = None if path is None or restart else _resume(path, run, len(found))
    matrix = matrix or Imatrix(datasets=(name,) if name else (), chunk_size=context, run=run)
    saved = matrix.chunk_count
    try:
        for window in found[matrix.chunk_count :]:
            part = Imatrix(chunk_count=1, run=run)
            for weight, (squares, counts) in activation_sums(model, window, output).items():
                part.add(weight, squares, counts)
            matrix = matrix.merge(part)
            if path is not None and matrix.chunk_count % save_every == 0:
                matrix.save(path)
                saved = matrix.chunk_count
            if progress is not None:
                progress(matrix.chunk_count, len(found))
    finally:
        if path is not None and matrix.chunk_count > saved:
            matrix.save(path)
    return matrix


def activation_sums(model: Model, window: TextWindow, output: bool = False) -> dict[str, tuple[F32, AnyArray]]:
    """Of one window, by weight: squared activations [rows, K] added up, and how many they were [rows]."""
    engine = model.engine
    watcher = Watcher(engine.schedule.graph, lambda weight: output or weight.startswith("blk."))
    most = min(engine.limits["tokens"], engine.limits["outputs"] if output else engine.limits["tokens"])
    sequence = CachedSequence()
    try:
        for start in range(0, len(window.tokens), most):
            part = window.tokens[start : start + most]
            engine.step([Feed(sequence, part, len(part) if output else 0, second=0)], watcher)
    finally:
        engine.release(sequence)
    return watcher.found


def _run_of(model: Model, tokens: Sequence[int], context: int, output: bool) -> str:
    """What two runs must share for one to go on from the other; device and threads may be others."""
    options = "imatrix", context, output, model.engine.config.cache_type
    return run_name(model.file, Samples([tokens]), *options, lora=model.lora)


def _resume(path: str | os.PathLike[str], run: str, most: int) -> Imatrix | None:
    """The matrix at `path`, to continue from, of at most `most` windows; None where there is no file."""
    if not os.path.exists(path):
        return None
    matrix, name = Imatrix.load(path), os.fsdecode(path)
    allowed = "(allowed: another name, or to begin anew with --restart)"
    if not matrix.run:
        raise UsageError(f"{name} does not say of which model and text it is, so no run goes on from it {allowed}")
    if matrix.run != run:
        other = differing(matrix.run, run, ("model", "text", "context or option"))
        raise UsageError(f"{name} is the importance matrix of another {other} {allowed}")
    if matrix.chunk_count > most:
        raise UsageError(f"{name} is of {matrix.chunk_count} windows already, more than {most} {allowed}")
    return matrix
