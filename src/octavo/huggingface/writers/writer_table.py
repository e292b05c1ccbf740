"""Which layouts checkpoints are written in, and which schemes each of them holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import QuantFormatError, UsageError
from octavo.formats.spec import AnyArray
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES, CheckpointScheme
from octavo.huggingface.writers import awq_writer, compressed_writer, gptq_writer, qqq_writer
from octavo.io.safetensors import TensorHead


@dataclass(frozen=True)
class Writer:
    """A layout that checkpoints are written in.

    name    as `octavo quantize --layout` takes it
    rows    of the schemes that it holds, the rows in which weights are rounded then
    multiple  what the rows of a weight have to be a multiple of
    config  the value of `quantization_config`, for layers that are left out
    heads   the tensors of a linear layer, by its weight's name and shape [N, K]
    arrays  the values of these
    """

    name: str
    rows: dict[str, str]
    multiple: int
    config: Callable[[CheckpointScheme, list[str]], dict[str, Any]]
    heads: Callable[[str, CheckpointScheme, tuple[int, ...]], list[TensorHead]]
    arrays: Callable[[CheckpointScheme, Coded], Iterator[AnyArray]]

    def scheme(self, scheme: CheckpointScheme) -> CheckpointScheme:
        """A scheme as this layout has it. Raises UsageError for one that it does not hold."""
        if scheme.name not in self.rows:
            problem = f"layout {self.name} does not hold {scheme.name}"
            others = ", ".join(writer.name for writer in WRITERS.values() if scheme.name in writer.rows)
            raise UsageError(f"{problem}; use layout {others}, or one of {', '.join(self.rows)}")
        return replace(scheme, row=self.rows[scheme.name])

    def with_static(self, scheme: CheckpointScheme) -> CheckpointScheme:
        """A scheme with static scales of activations. Raises UsageError where this layout has no place for them."""
        if self.name != "compressed-tensors":
            raise UsageError(f"static activations with layout {self.name}: they need compressed-tensors")
        return scheme.with_static()

    def require(self, shape: tuple[int, ...]) -> None:
        """Raise QuantFormatError for a weight [N, K] that the layout has no words for."""
        if shape[0] % self.multiple:
            allowed = f"multiples of {self.multiple}"
            raise QuantFormatError(f"layout {self.name} of a weight with {shape[0]} rows (allowed: {allowed})")


def _rows(*names: str) -> dict[str, str]:
    return {name: CHECKPOINT_SCHEMES[name].row for name in names}


def _writer(name: str, rows: dict[str, str], multiple: int, module: Any) -> Writer:
    return Writer(
        name, rows, multiple, module.quantization_config, module.module_heads, module.module_arrays
    )


WRITERS = {
    writer.name: writer
    for writer in (
        _writer("compressed-tensors", _rows(*CHECKPOINT_SCHEMES), 1, compressed_writer),
        _writer("gptq", _rows("w4a16-g128", "w4a16-g64", "w4a16-g32", "w4a16", "w8a16"), 8, gptq_writer),
        _writer("awq", {f"w4a16-g{group}": f"GROUP4_{group}_Z_F16" for group in (128, 64, 32)}, 8, awq_writer),
        _writer("qqq", _rows("w4a8", "w4a8-g128"), 64, qqq_writer),
    )
}
"""Layouts by name. AWQ's has zero points, which rows around zero lack."""


def find_writer(name: str) -> Writer:
    """The layout of a name. Raises UsageError for others."""
    if name not in WRITERS:
        raise UsageError(f"layout {name!r} (allowed: {', '.join(WRITERS)})")
    return WRITERS[name]
