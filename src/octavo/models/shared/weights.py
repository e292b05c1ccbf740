"""Weights: a model's tensors as graph leaves, checked against the shapes that its architecture expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import QTensor, dequantize
from octavo.formats.spec import F32
from octavo.graph.builder import weight
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile

SCALE, INPUT_SCALE, BIAS, ORDER = ".scale", ".input_scale", ".bias", ".order"
"""Ends of names of what goes with a weight. Columns of a weight with an order, which only checkpoints have, go with the
values of an activation that it names. An input scale is what activations are divided by when they become codes of 8
bits, for weights of rows (`formats.channel`); beside others it carries nothing that is computed here."""
WHOLE = (BIAS, SCALE, "ssm_a", "ssm_d")
"""Ends of names that do not go on with ".weight"."""
SHOWN = 3
"""Tensors that an error names beside the first."""


@dataclass(frozen=True)
class Expected:
    """The shape that a tensor must have, and whether a model may lack it.

    row   it may be a matrix of one row
    ones  it may have more or fewer axes of 1
    """

    shape: tuple[int, ...]
    optional: bool = False
    row: bool = False
    ones: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a file's tensor may have this shape."""
        if self.ones:
            return [n for n in shape if n != 1] == [n for n in self.shape if n != 1]
        return shape == self.shape or (self.row and shape == (1, *self.shape))


def matrix(n: int, k: int) -> Expected:
    return Expected((n, k))


def vector(n: int, *, optional: bool = False) -> Expected:
    return Expected((n,), optional)


Tensors = dict[str, Expected]


def with_scales(weights: Tensors) -> Tensors:
    """The weights of products, and what each may have beside it: a scale and an order of columns, for experts
    [E, N, K] of each.

    Types whose blocks have scales of little range (NVFP4) need one for the whole tensor.
    """
    out = dict(weights)
    for name, want in weights.items():
        count = want.shape[0] if len(want.shape) == 3 else 1
        out |= {name.removesuffix(".weight") + end: vector(count, optional=True) for end in (SCALE, INPUT_SCALE)}
        order = (want.shape[0], want.shape[2]) if len(want.shape) == 3 else want.shape[1:]
        out[name.removesuffix(".weight") + ORDER] = Expected(order, optional=True)
    return out


def check_tensors(file: GGUFFile, expected: Tensors) -> None:
    """Raises ModelError unless a file has the tensors that are expected, in these shapes, and no others."""
    for name, want in expected.items():
        info = file.tensors.get(name)
        if info is None:
            if not want.optional:
                raise ModelError(
                    "is missing", file=file.path, field=f"tensor {name}", allowed=f"shape {list(want.shape)}"
                )
        elif not want.fits(tuple(info.shape)):
            raise ModelError(
                f"shape {list(info.shape)} contradicts the hyperparameters",
                file=file.path, field=f"tensor {name}", allowed=f"shape {list(want.shape)}",
            )
        elif name.endswith((SCALE, INPUT_SCALE, ORDER)) and weight_of(name) not in file.tensors:
            raise ModelError(f"has no {weight_of(name)} beside it", file=file.path, field=f"tensor {name}")
    others = [name for name in file.tensors if name not in expected]
    if others:
        more = ", ".join(map(shown, others[1 : SHOWN + 1]))
        rest = f", nor are {len(others) - 1} others: {more}" if more else ""
        problem = f"is not part of this architecture{rest}"
        raise ModelError(problem, file=file.path, field=f"tensor {shown(others[0])}")


def weight_of(name: str) -> str:
    """The name of the weight that a scale or bias goes with."""
    return name.rpartition(".")[0] + ".weight"


def scale_name(name: str) -> str:
    """The name of what the products of the weight `name` are multiplied by; none for what has no such thing.

    The scale of a router is of what it is given.
    """
    has_scale = name.endswith(".weight") and not name.endswith("ffn_gate_inp.weight")
    return name.removesuffix(".weight") + SCALE if has_scale else ""


def scale_of(file: GGUFFile, name: str) -> F32 | None:
    """What the products of the weight `name` are multiplied by, float32 [1] or [E]; None where there is nothing."""
    scale = scale_name(name)
    return dequantize(file.tensor(scale)) if scale in file.tensors else None


def input_scale_of(file: GGUFFile, weight: QTensor) -> float | None:
    """The static scale of what a weight is multiplied with; None where each token gets one of its own.

    Raises ModelError for a scale that is not over 0.
    """
    scale = weight.name.removesuffix(".weight") + INPUT_SCALE
    if not weight.format.per_row or scale not in file.tensors:
        return None
    value = float(dequantize(file.tensor(scale))[0])
    if not 0 < value < float("inf"):
        raise ModelError(f"is {value}", file=file.path, field=f"tensor {scale}", allowed="above 0")
    return value


def order_of(file: GGUFFile, name: str) -> F32:
    """An order of columns, float32 [K] or [E, K]. Raises ModelError where a row does not name each column once."""
    return require_order(dequantize(file.tensor(name)), name, file.path)


def require_order(order: F32, name: str, path: str | None = None) -> F32:
    """Raise ModelError for numbers [..., K] that do not name each of K places once."""
    wanted = np.arange(order.shape[-1], dtype=np.float32)
    if not (np.sort(order, axis=-1) == wanted).all():
        raise ModelError("does not name each column once", file=path, field=f"tensor {name}",
                         allowed=f"all of 0 to {len(wanted) - 1}")
    return order


class Weights:
    """Leaves by GGUF name: `w["output_norm"]` is output_norm.weight, `w.get` gives None for a missing one."""

    def __init__(self, file: GGUFFile, prefix: str = "", nodes: dict[str, Node] | None = None) -> None:
        self._file, self._prefix = file, prefix
        self._nodes: dict[str, Node] = {} if nodes is None else nodes

    def block(self, layer: int) -> Weights:
        """The weights of one layer."""
        return Weights(self._file, f"blk.{layer}.", self._nodes)

    @property
    def outer(self) -> Weights:
        """Those outside of layers, by their names there."""
        return Weights(self._file, "", self._nodes)

    def constant(self, name: str, make: Callable[[], Node]) -> Node:
        """What is made of weights once for all layers, by a name for it."""
        if name not in self._nodes:
            self._nodes[name] = make()
        return self._nodes[name]

    def __getitem__(self, name: str) -> Node:
        full = self._full(name)
        if full not in self._nodes:
            tensor = self._file.tensor(full)
            self._nodes[full] = weight(tensor, input_scale_of(self._file, tensor))
        return self._nodes[full]

    def as_matrix(self, name: str) -> Node:
        """A vector [K], or a matrix of one row, as a matrix [1, K]."""
        tensor = self[name].tensor
        return weight(QTensor(tensor.format, (1, tensor.shape[-1]), tensor.data.reshape(1, -1), tensor.name))

    def get(self, name: str) -> Node | None:
        return self[name] if self._full(name) in self._file.tensors else None

    def scale(self, name: str) -> F32 | None:
        """What products of the weight `name` are multiplied by, see `scale_of`."""
        return scale_of(self._file, self._full(name))

    def order(self, name: str) -> F32 | None:
        """Which value of an activation goes with a column of a weight, float32 [K] or [E, K]; None: its own."""
        full = self._full(name).removesuffix(".weight") + ORDER
        return order_of(self._file, full) if full in self._file.tensors else None

    def _full(self, name: str) -> str:
        """With ".weight", which names that end with a dot, or as those of `WHOLE` do, don't go on with."""
        return self._prefix + (name.removesuffix(".") if name.endswith((".", *WHOLE)) else f"{name}.weight")
