"""Weights: a model's tensors as graph leaves, checked against the shapes that its architecture expects."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.graph.builder import weight
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile


@dataclass(frozen=True)
class Expected:
    """The shape that a tensor must have, and whether a model may lack it."""

    shape: tuple[int, ...]
    optional: bool = False


def matrix(n: int, k: int) -> Expected:
    return Expected((n, k))


def vector(n: int, *, optional: bool = False) -> Expected:
    return Expected((n,), optional)


Tensors = dict[str, Expected]


def check_tensors(file: GGUFFile, expected: Tensors) -> None:
    """Raises ModelError for the first tensor that is missing or has another shape than the hyperparameters imply."""
    for name, want in expected.items():
        info = file.tensors.get(name)
        if info is None:
            if not want.optional:
                raise ModelError(
                    "is missing", file=file.path, field=f"tensor {name}", allowed=f"shape {list(want.shape)}"
                )
        elif tuple(info.shape) != want.shape:
            raise ModelError(
                f"shape {list(info.shape)} contradicts the hyperparameters",
                file=file.path, field=f"tensor {name}", allowed=f"shape {list(want.shape)}",
            )  # fmt: skip


class Weights:
    """Leaves by GGUF name: `w["output_norm"]` is output_norm.weight, `w.get` gives None for a missing one."""

    def __init__(self, file: GGUFFile, prefix: str = "", nodes: dict[str, Node] | None = None) -> None:
        self._file, self._prefix = file, prefix
        self._nodes: dict[str, Node] = {} if nodes is None else nodes

    def block(self, layer: int) -> Weights:
        """The weights of one layer."""
        return Weights(self._file, f"blk.{layer}.", self._nodes)

    def __getitem__(self, name: str) -> Node:
        full = self._full(name)
        if full not in self._nodes:
            self._nodes[full] = weight(self._file.tensor(full))
        return self._nodes[full]

    def get(self, name: str) -> Node | None:
        return self[name] if self._full(name) in self._file.tensors else None

    def _full(self, name: str) -> str:
        return self._prefix + (name if name.endswith(".bias") else f"{name}.weight")
