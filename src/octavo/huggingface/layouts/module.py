"""A quantized module: the tensors of a linear layer by the ends of their names, checked, and rows made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from octavo.errors import ModelError, QuantFormatError, shown
from octavo.formats import BlockFormat, Planes, QTensor, by_name, group_format, pack
from octavo.formats.group import GROUPS, Below, group_of
from octavo.formats.spec import F32, AnyArray
from octavo.huggingface.layouts.shares import count_of
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor
from octavo.models.shared.conversion import f32_tensor

CHUNK_VALUES = 1 << 22
Part = Callable[[slice], Planes]
"""Planes of some rows."""
INPUT_SCALE = "input_scale"
HALVES = ("F16", "BF16", "F32")
"""Types of scales."""


@dataclass(frozen=True)
class Kind:
    """How codes lie: their bits, the values that share a scale, the type of scales, and what is taken off codes."""

    bits: int
    group: int
    scale: str
    below: Below


@dataclass
class Module:
    """The tensors of `folder` whose names begin with `name` and a dot, by the rest; `used` were asked for.

    config  the values of config.json
    """

    folder: str
    name: str
    parts: Mapping[str, StoredTensor]
    used: set[str] = field(default_factory=set)
    config: Mapping[str, object] = field(default_factory=dict)

    def __contains__(self, end: str) -> bool:
        return end in self.parts

    def take(self, end: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> StoredTensor:
        """The tensor of this end. Raises ModelError where it is missing, or of other types or another shape.

        shape  sizes, None for any from 1 on; None for any shape
        """
        if end not in self.parts:
            raise self.error(end, "is missing", "beside " + ", ".join(sorted(self.parts)))
        tensor = self.parts[end]
        self.used.add(end)
        fits = shape is None or (
            len(shape) == len(tensor.shape)
            and all(n > 0 if want is None else n == want for n, want in zip(tensor.shape, shape, strict=True))
        )
        if tensor.dtype not in dtypes or not fits:
            kinds = "floats" if dtypes[: len(HALVES)] == HALVES else " or ".join(dtypes)
            raise self.error(end, f"is {tensor.dtype} {list(tensor.shape)}", kinds + _sizes(shape))
        return tensor

    def error(self, end: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.folder, field=f"tensor {shown(f'{self.name}.{end}')}", allowed=allowed)

    def rows(self, n: int, k: int, kind: Kind, load: Callable[[], Part]) -> LazyTensor:
        """The weight [n, k] in rows of groups, made when it is loaded.

        load  reads the tensors; what it returns gives planes of some rows, with a scale for each of the file's groups
        """
        group, bits = kind.group, kind.bits
        inner = group_of(group) if group > 0 and k % max(group, 1) == 0 else None
        if inner is None:
            problem = f"has groups of {group} in rows of {k} values"
            raise self.error("weight", problem, f"multiples of {GROUPS[-1]} that divide the row")
        try:
            fmt = group_format(8 if bits == 7 else bits, inner, kind.scale, kind.below)
        except QuantFormatError as error:
            raise self.error("weight", str(error)) from None

        def repeated() -> Part:
            planes, times = load(), group // inner

            def each(plane: AnyArray | None) -> AnyArray | None:
                return plane if plane is None or times == 1 else np.repeat(plane, times, axis=1)

            def made(part: slice) -> Planes:
                p = planes(part)
                q = p.q + np.uint8(64) if bits == 7 and kind.below == "offset" else p.q  # kept as codes of 8 bits
                return Planes(q, d=each(p.d), dmin=each(p.dmin), m=each(p.m))

            return made

        return self.weight(fmt, n, k, repeated)

    def weight(self, fmt: BlockFormat, n: int, k: int, load: Callable[[], Part]) -> LazyTensor:
        """The weight [n, k] in a format, its planes made some rows at a time when it is loaded."""
        return LazyTensor(f"{self.name}.weight", fmt, (n, k), lambda: packed(fmt, n, k, load()))

    def input_scale(self, end: str = INPUT_SCALE) -> LazyTensor:
        """The static scale of activations, float32 [1] called input_scale. Raises ModelError where there is no one.

        A module of several matrices may have the same one for each.
        """
        scale = self.take(end, HALVES)
        if scale.shape not in ((1,), (), (1, 1), (count_of(self.name),)):
            raise self.error(end, f"is {scale.dtype} {list(scale.shape)}", "floats [1] or []")

        def load() -> F32:
            values = scale.floats().reshape(-1)
            if (values != values[0]).any():
                raise self.error(end, f"has scales from {values.min():g} to {values.max():g}", "the same for all rows")
            return values[:1]

        return self.vector(INPUT_SCALE, load, 1)

    def vector(self, end: str, load: Callable[[], F32], size: int) -> LazyTensor:
        """A vector beside the weight, float32 [size]."""
        name = f"{self.name}.{end}"
        return LazyTensor(name, by_name("F32"), (size,), lambda: f32_tensor(load(), name))


def _sizes(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return ""
    return " of two dimensions" if set(shape) == {None} else f" {list(shape)}"


def packed(fmt: BlockFormat, n: int, k: int, planes: Part) -> QTensor:
    """Rows [n, k] of a format, some at a time."""
    out = np.empty((n, fmt.row_bytes(k)), np.uint8)
    step = max(1, CHUNK_VALUES // k)
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        out[part] = pack(planes(part), fmt)
    return QTensor(fmt, (n, k), out)


def as_experts(rows: LazyTensor, name: str, experts: int) -> LazyTensor:
    """Rows [E * N, K] as a tensor [E, N, K] called `name`."""
    shape = experts, rows.shape[0] // experts, rows.shape[1]

    def load() -> QTensor:
        return QTensor(rows.format, shape, rows.load().data.reshape(*shape[:2], -1))

    return LazyTensor(name, rows.format, shape, load)


class QuantizedLayout(Protocol):
    """A way in which quantized modules lie in a checkpoint, as its configuration says."""

    def read(self, module: Module) -> list[LazyTensor]:
        """What a module's tensors mean: `weight`, and what goes beside it. Nothing for one that is not quantized; what
        it does not take is as it lies.

        Raises ModelError for a module that is incomplete or contradicts the configuration.
        """
        ...
