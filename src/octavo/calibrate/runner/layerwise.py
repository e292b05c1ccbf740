"""Running a model stage by stage over all samples, so that weights can be changed on the way.

What products are given is kept of all samples. So a stage's Hessians are sums over arrays, and each stage is run once,
with the weights that were put in; the next stage sees what came of them. That is GPTQ's order within a layer and from
one layer to the next, for any architecture: see `graph.stages`.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from octavo.calibrate import arrays
from octavo.calibrate.arrays import is_tensor, on_host, put, rounded_factors
from octavo.calibrate.hessian import LARGEST_DOUBLE, count
from octavo.calibrate.runner.journal import Journal
from octavo.calibrate.runner.open_stage import OpenStage, ProductInput, as_weight, inputs_of
from octavo.calibrate.runner.samples import Samples
from octavo.formats import QTensor, dequantize
from octavo.formats.spec import F32, AnyArray
from octavo.graph.executor import Executor
from octavo.graph.lower import lower
from octavo.graph.node import Node, Sizes, bind
from octavo.graph.protocol import AsyncBackend, Backend, HostBackend, TensorBackend
from octavo.graph.schedule import Schedule, schedule
from octavo.graph.stages import Stage, input_name, stages
from octavo.io.allocator import keep_apart, trim
from octavo.io.atomic import failures_of, require_room
from octavo.models import ModelSpec
from octavo.quantizers.statistics import ChannelStatistics
from octavo.sizes import size

DTYPES: Mapping[str, type[Any]] = {"f32": np.float32, "i32": np.int32}
IN_MEMORY = 1 << 28
"""Bytes of a stream's values of all samples up to which they are in memory though a run has a folder: writing them to a
disk takes as long as a small model's stages."""
MATRICES = (20, 8), (36, 28)
"""Bytes for each number of a Hessian while it is factorized, of double sums and of others: on the host, on a device."""
PROCESS = 200 << 20
"""Bytes of Python, kernels and what is at work beside that."""
log = logging.getLogger("octavo")
CHANGED, ORIGINAL = "changed", "original"
"""The streams: the model with the weights that were put in, and as it was."""
Done = Callable[[Stage, Mapping[str, ChannelStatistics]], None]
"""Is told of a stage that was run, before the journal says so, and what was written to caches, by their names."""
Progress = Callable[[int, int], None]
"""Is told samples of stages that were run, and of how many."""
GgufWeight = Callable[[str], F32 | None]
"""The values that an earlier run has put in for a weight, None where it stayed as it was."""


@dataclass(frozen=True)
class AttentionWatch:
    """Looks at the attention of some samples.

    tell    is given an attention as the whole graph has it, and a sample's q [T, H, D], k and v [T, Hkv, D] there, in
            memory that is written to again afterwards
    tokens  of all samples that are looked at, at most; but one sample is
    """

    tell: Callable[[Node, F32, F32, F32], None]
    tokens: int


def written(stage: Stage, given: Mapping[str, Any], made: Sequence[tuple[Backend, Any]]) -> Iterator[tuple[str, Any]]:
    """What a stage writes to caches, by their names: of what it is given, and of what it has made."""
    numbers = stage.taken
    results = dict(zip(stage.made, made, strict=False))
    for name, node in stage.written.items():
        if name in results:
            backend, value = results[name]
            yield name, value if isinstance(backend, TensorBackend) else backend.read(value)
        else:
            values = given[input_name(numbers[id(node)])]
            yield name, values


def to_host(values: Any) -> F32:
    """Values as a float32 array in memory."""
    return np.asarray(on_host(values), np.float32)


def spread(count: int, most: int) -> frozenset[int]:
    """At most `most` of 0 to `count`, evenly spread."""
    return frozenset(np.linspace(0, count - 1, min(most, count)).astype(int).tolist())


def statistics_of(name: str, x: Node) -> ChannelStatistics:
    """Statistics to count x [T, H, D] with, which is written to a cache."""
    heads, size = bind(x.shape[1:], {})
    return ChannelStatistics(heads, size, name)


class StageValues:
    """Arrays by the name of the stream that they belong to and their number in the graph.

    With a `folder` they are files, of which the system keeps in memory what it has room for; without, they are memory.
    With a `device` of torch's all floats lie in its memory instead.
    """

    def __init__(self, folder: str | None = None, device: str | None = None) -> None:
        self.folder, self._device = folder, device
        self._arrays: dict[tuple[str, int], Any] = {}
        self._spare: dict[tuple[str, int], AnyArray] = {}  # by stream and bytes: the system need not clear it anew

    def __getitem__(self, key: tuple[str, int]) -> Any:
        return self._arrays[key]

    def new(self, key: tuple[str, int], shape: tuple[int, ...], dtype: str) -> Any:
        """An array to fill, in place of one that is there. Raises FileError where the disk has no room for it."""
        if self._device is not None and dtype == "f32":
            self._arrays[key] = arrays.zeros(shape, False, self._device)
            return self._arrays[key]
        path = self._path(key)
        array = self._empty(key[0], shape, dtype) if path is None else _file(path, shape, dtype)
        self._arrays[key] = array
        return array

    def _empty(self, stream: str, shape: tuple[int, ...], dtype: str) -> AnyArray:
        nbytes = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
        memory = self._spare.pop((stream, nbytes), None)
        array: AnyArray = (np.empty(nbytes, np.uint8) if memory is None else memory).view(DTYPES[dtype])
        return array.reshape(shape)

    def free(self, key: tuple[str, int]) -> None:
        array, path = self._arrays.pop(key), self._path(key)
        if not isinstance(array, np.ndarray):
            return
        if path is None:
            self._spare[key[0], array.nbytes] = array.reshape(-1).view(np.uint8)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _path(self, key: tuple[str, int]) -> str | None:
        return None if self.folder is None else os.path.join(self.folder, f"{key[0]}-{key[1]}.bin")


def kept_bytes(stages: Sequence[Stage], sizes: Sizes, streams: int) -> int:
    """Bytes of the values of all samples, of which there are `sizes`, at most, as `StageValues` has them."""
    total = top = 0
    spare, held = set[int](), dict[int, int]()
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    for stage in stages:
        for n, node in stage.gives.items():
            held[n] = math.prod(bind(node.shape, sizes)) * item[node.dtype]
            total += 0 if held[n] in spare else held[n]
            spare.discard(held[n])
        top = max(top, total)
        later = {n for s in stages[stage.number + 1 :] for n in s.takes}
        for n in held.keys() - later:
            size = held.pop(n)
            total -= size if size in spare else 0
            spare.add(size)
    return streams * top


def _file(path: str, shape: tuple[int, ...], dtype: str) -> AnyArray:
    """An array in a new file, for which the disk gives all room now: where it has none later, writing kills."""
    nbytes = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
    with failures_of(path):
        with open(path, "wb") as file:
            file.truncate(nbytes)
            if nbytes and hasattr(os, "posix_fallocate"):
                _take(file.fileno(), nbytes)
        return np.memmap(path, DTYPES[dtype], "r+", shape=shape)


def _take(fd: int, nbytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that can't promise room
            raise


class Layerwise:
    """A model that is run stage by stage over samples of tokens.

    backends   that run it, in order of preference
    samples    token lists, each a sequence of its own
    original   run the model as it was too, for `ProductInput.pairs`
    tables     what rows are looked up in instead of the model's own tensors of these names, but in the original
    journal    makes the run one that goes on after a kill, with values in its folder if they are more than IN_MEMORY
    folder     where values are kept in files, if there is no journal; None: in memory
    made       what a run that goes on has made before: stages that were done are run again with that
    done       is told of each stage that was run
    caches     what is written to caches is counted for `done`
    attention  is told of the attentions of some samples
    progress   is told how far the run is

    Weights are computed with as floats, whatever they are stored as. Where the first backend is a TensorBackend,
    products take their factors to 11 bits there, and values stay in its memory if that has room for them.
    """

    def __init__(
        self, spec: ModelSpec, backends: Sequence[Backend], samples: Samples, *, original: bool = False,
        tables: Mapping[str, QTensor] | None = None, journal: Journal | None = None, folder: str | None = None,
        made: GgufWeight | None = None, done: Done | None = None, caches: bool = True,
        attention: AttentionWatch | None = None, progress: Progress | None = None,
    ) -> None:
        self.spec, self.samples, self.tables = spec, samples, dict(tables or {})
        self.stages = stages(spec.graph(n_ctx=samples.longest))
        self.backends, self._journal, self._done, self._progress = tuple(backends), journal, done, progress
        self.streams = (CHANGED, ORIGINAL) if original else (CHANGED,)
        self._told: set[str] = set()
        self._watches = caches and done is not None
        self._attention = attention
        self._shown = spread(len(samples), max(1, attention.tokens // samples.longest)) if attention else frozenset()
        self._made: GgufWeight = made or (lambda _: None)
        self.kept = kept_bytes(self.stages, samples.all, len(self.streams))
        """Bytes of the values of all samples at most."""
        self.device = backends[0].device if isinstance(backends[0], TensorBackend) else None
        self.keeps = isinstance(backends[0], TensorBackend) and 2 * self.kept <= backends[0].free()
        """Whether values stay in the memory of the device: where they leave half of it to a stage and its weights."""
        self.in_files = not self.keeps and self.kept > IN_MEMORY * len(self.streams)
        """Whether values lie in files if the run has a folder for them."""
        self._folder = folder if journal is None else journal.folder
        self._values = StageValues(self._folder if self.in_files else None, self.device if self.keeps else None)
        self.first = 0 if journal is None else journal.stage
        """The stage that the run begins with: those before it were done by an earlier run."""

    def tell_memory(self) -> None:
        """Say before a method's run what it takes, about: a stage's weights as they were and as they are made, a
        Hessian of the most inputs while it is factorized (and sums of what both models have), values of all samples."""
        made = [[p.inputs[0].tensor for p in stage.products] for stage in self.stages if stage.layer is not None]
        widest = max((tensor.shape[-1] for tensors in made for tensor in tensors), default=0)
        sums = MATRICES[self.device is not None][widest > LARGEST_DOUBLE] + (36 if len(self.streams) > 1 else 0)
        values = 0 if self.in_files and self._folder is not None else self.kept
        nbytes = 8 * max((sum(t.size for t in tensors) for tensors in made), default=0) + sums * widest**2 + values
        log.warning("%s tokens are run: about %s of memory%s", f"{self.samples.all['tokens']:,}",
                    size(nbytes + PROCESS), " of the device" if self.device else "", extra={"news": True})

    def run(self) -> Iterator[OpenStage]:
        """Each stage that has products, before it is run; it is run when the next one is asked for.

        Raises NonFiniteError, naming a weight, where the model computes NaN or Inf, FileError where the disk does not
        hold the values.
        """
        keep_apart()
        if self.in_files and self._folder is not None:
            require_room(self._folder, self.kept)
        for stage in self.stages[: self.first]:
            self._run_again(stage)
        for stage in self.stages[self.first :]:
            trim()
            replaced: dict[str, QTensor] = {}
            if stage.products:
                tensors = {p.inputs[0].name: p.inputs[0].tensor for p in stage.products}
                yield OpenStage(stage.number, stage.layer, self._inputs(stage), self.device, tensors, replaced)
                trim()
            watched = stage.written if self._watches else {}
            caches = {name: statistics_of(name, x) for name, x in watched.items()}
            for stream in self.streams:
                if stage.gives or stage.written:
                    self._run(stage, stream, replaced if stream == CHANGED else {}, caches)
            if self._done is not None:
                self._done(stage, caches)
            self._end(stage)

    def _run_again(self, stage: Stage) -> None:
        """Run a stage that an earlier run has done, with what it has made."""
        names = {p.inputs[0].name for p in stage.products}
        replaced = {name: as_weight(name, values) for name in names if (values := self._made(name)) is not None}
        for stream in self.streams:
            if stage.gives or stage.written:
                self._run(stage, stream, replaced if stream == CHANGED else {}, {})
        self._free(stage)

    def _inputs(self, stage: Stage) -> list[ProductInput]:
        kept = [{n: self._values[stream, n] for n in stage.takes} for stream in self.streams]
        return inputs_of(stage, kept[0], kept[1] if len(kept) > 1 else None, self.device)

    def _run(
        self, stage: Stage, stream: str, replaced: Mapping[str, QTensor], caches: Mapping[str, ChannelStatistics]
    ) -> None:
        """Run a stage over all samples."""
        tables = self.tables if stream == CHANGED else {}
        taken: dict[str, Any] = {input_name(n): self._values[stream, n] for n in stage.takes}
        waits = any(isinstance(backend, AsyncBackend) for backend in self.backends)
        here = [name for name, values in taken.items() if is_tensor(values) or not waits]
        shows = stream == CHANGED and self._attention is not None and bool(stage.attentions)
        schedule = self.scheduled(stage, replaced, tables, asked=shows)
        executor = Executor(schedule, self.backends, self.samples.limits, fed=here)
        results = [
            self._values.new((stream, number), bind(node.shape, self.samples.all), node.dtype)
            for number, node in stage.gives.items()
        ]
        for i, sample in enumerate(self.samples):
            given = {name: values[sample.part] for name, values in taken.items()}
            inputs = {**sample.inputs, **{name: values for name, values in given.items() if name not in here}}
            with rounded_factors(self.device is not None):
                made = executor.values(inputs, sample.sizes, {name: given[name] for name in here})
            for kept, (backend, value) in zip(results, made, strict=False):
                stays = is_tensor(kept) and isinstance(backend, TensorBackend)
                read = value if stays or isinstance(value, np.ndarray) else backend.read(value)
                put(kept, sample.part, read)
            if stream == CHANGED and caches:
                for name, values in written(stage, given, made[len(results) :]):
                    count(caches[name], values)
            if shows and i in self._shown:
                self._show(stage, given, made[len(results) :])
            self._tell_progress(stage, stream, i)
        for backend in self.backends:
            if isinstance(backend, HostBackend):
                backend.begin_loading()

    def _tell_progress(self, stage: Stage, stream: str, sample: int) -> None:
        if self._progress is not None:
            at = stage.number * len(self.streams) + self.streams.index(stream)
            whole = len(self.stages) * len(self.streams) * len(self.samples)
            self._progress(at * len(self.samples) + sample + 1, whole)

    def _show(self, stage: Stage, given: Mapping[str, Any], made: Sequence[tuple[Backend, Any]]) -> None:
        """Tell `attention` of a sample."""
        assert self._attention is not None
        found = {name: to_host(values) for name, values in written(stage, given, made)}
        numbers = stage.taken
        asked = dict(zip(stage.queries, made[len(stage.made) :], strict=True))
        for node in stage.attentions:
            if node.name in asked:
                backend, value = asked[node.name]
                q = value if isinstance(backend, TensorBackend) else backend.read(value)
            else:
                q = given[input_name(numbers[id(node.inputs[0])])]
            self._attention.tell(node, to_host(q), found[node.inputs[1].name], found[node.inputs[2].name])

    def scheduled(
        self, stage: Stage, replaced: Mapping[str, QTensor] | None = None,
        tables: Mapping[str, QTensor] | None = None, *, asked: bool = False,
    ) -> Schedule:
        """A stage as it is run, with weights `replaced`, and others that are not floats as floats; if `asked`, it gives
        what attention asks too."""
        graph = stage.graph(partial(_as_floats, replaced or {}), tables or {}, asked=asked)
        graph = lower(graph, self.backends, fused=False)
        made = schedule(graph, self.backends, self.samples.limits, quiet=True)
        for reason in set(made.fallbacks) - self._told:
            log.warning("%s", reason)
        self._told.update(made.fallbacks)
        return made

    def _end(self, stage: Stage) -> None:
        """Note that a stage is done, and let go of what no later one reads."""
        if self._journal is not None:
            self._journal.advance(stage.number + 1)
        self._free(stage)

    def _free(self, stage: Stage) -> None:
        """Let go of what no later stage reads."""
        later = {n for s in self.stages[stage.number + 1 :] for n in s.takes}
        for number in (stage.takes.keys() | stage.gives.keys()) - later:
            for stream in self.streams:
                self._values.free((stream, number))


def _as_floats(replaced: Mapping[str, QTensor], tensor: QTensor) -> QTensor:
    if tensor.name in replaced:
        return replaced[tensor.name]
    return tensor if tensor.format.is_float else as_weight(tensor.name, dequantize(tensor))
