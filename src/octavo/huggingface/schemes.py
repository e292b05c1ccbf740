"""Schemes that checkpoints are written in: how weights are rounded, and what goes with them in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from octavo.errors import QuantFormatError, UsageError
from octavo.formats import BlockFormat, channel_format
from octavo.formats import rows as numbers
from octavo.formats.activation import STATIC
from octavo.formats.float8 import float8_format
from octavo.formats.group import row_named
from octavo.formats.rows import GROUP
from octavo.huggingface.tensors.tensor_names import is_linear

KEY = "quantization_config"


@dataclass(frozen=True)
class CheckpointScheme:
    """How linear layers are quantized, and how they lie in the file.

    name      as `octavo quantize --scheme` takes it
    row       the format of rows that a weight is rounded in
    kind, bits  of a weight's codes
    strategy  what a scale belongs to, in compressed-tensors' words
    group     values of a row that share one, None where the strategy says it
    tokens    activations are quantized to 8 bits too, with a scale for each token
    layouts   the ways in which weights may lie in a file, the first the one that is written
    scale     type of scales in the file
    multiple  what the length of a row has to be a multiple of
    static    activations have one scale, which is in the file
    left      weights of linear layers that stay as they are, by their names in GGUF
    """

    name: str
    row: str
    kind: str
    bits: int
    strategy: str
    group: int | None
    tokens: bool
    layouts: tuple[str, ...]
    scale: str = "F32"
    multiple: int = 1
    static: bool = False
    left: frozenset[str] = frozenset()

    @property
    def activation(self) -> str:
        """The format of activations, see `formats.activation`."""
        if not self.tokens or self.square:
            return "f32"
        token = "int8_token" if self.kind == "int" else "fp8_token"
        return STATIC[token] if self.static else token

    def with_static(self) -> CheckpointScheme:
        """The scheme with one scale for activations. Raises UsageError where activations have none for each token."""
        if self.activation == "f32":
            allowed = ", ".join(s.name for s in CHECKPOINT_SCHEMES.values() if s.activation != "f32")
            raise UsageError(f"static activations with scheme {self.name} (allowed: {allowed})")
        return replace(self, static=True)

    def takes(self, name: str) -> bool:
        """Whether a tensor is the weight of a linear layer that is quantized."""
        return is_linear(name) and name not in self.left

    @property
    def packs(self) -> bool:
        """Whether codes are written several to a word."""
        return self.layouts[0] == "pack-quantized"

    @property
    def square(self) -> bool:
        """A scale belongs to as many rows as values of a row."""
        return self.strategy == "block"

    def format(self, k: int) -> BlockFormat:
        """The format of rows of `k` values. Raises QuantFormatError for rows that it can't hold."""
        if k % self.multiple or not k:
            others = [scheme.name for scheme in CHECKPOINT_SCHEMES.values() if k and k % scheme.multiple == 0]
            hint = f"; schemes of such rows: {', '.join(others)}" if others else ""
            raise QuantFormatError(f"{self.name}: a row of {k} values (allowed: multiples of {self.multiple}{hint})")
        if self.row in _CHANNEL:
            return channel_format(self.row, k)
        return float8_format(GROUP) if self.square else row_named(self.row)

    def groups(self, k: int) -> int:
        """Scales of a row of `k` values in the file."""
        return 1 if self.group is None else k // self.group


_CHANNEL = {scheme.format for scheme in numbers.SCHEMES.values()}
_PACK, _INT = ("pack-quantized", "int-quantized"), ("int-quantized",)
_FLOAT, _NV, _MX = ("float-quantized",), ("nvfp4-pack-quantized",), ("mxfp4-pack-quantized",)
CHECKPOINT_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        CheckpointScheme("int8-w8a8", "INT8", "int", 8, "channel", None, True, _INT),
        CheckpointScheme("w4a8", "INT4", "int", 4, "channel", None, True, _PACK, multiple=GROUP),
        CheckpointScheme("w4a8-g128", "INT4_G128", "int", 4, "group", GROUP, True, _PACK, multiple=GROUP),
        CheckpointScheme("fp8", "FP8", "float", 8, "channel", None, True, _FLOAT),
        CheckpointScheme("w4a16-g128", "GROUP4_128_F16", "int", 4, "group", GROUP, False, _PACK, "F16", GROUP),
        CheckpointScheme("w4a16-g64", "GROUP4_64_F16", "int", 4, "group", 64, False, _PACK, "F16", 64),
        CheckpointScheme("w4a16-g32", "GROUP4_32_F16", "int", 4, "group", 32, False, _PACK, "F16", 32),
        CheckpointScheme("w4a16", "INT4", "int", 4, "channel", None, False, _PACK, multiple=GROUP),
        CheckpointScheme("w8a16", "INT8", "int", 8, "channel", None, False, ("pack-quantized",), multiple=32),
        CheckpointScheme("fp8-block", "FP8_128", "float", 8, "block", GROUP, True, _FLOAT, multiple=GROUP),
        CheckpointScheme("mxfp4a16", "MXFP4", "float", 4, "group", 32, False, _MX, "U8", 32),
        CheckpointScheme("nvfp4a16", "NVFP4", "float", 4, "tensor_group", 16, False, _NV, "F8_E4M3", 64),
    )
}
"""Schemes by name; the first four are those of `formats.rows.SCHEMES`."""


GROUPED = ("w4a16-g128", "w4a16-g64", "w4a16-g32")
"""Schemes that differ in the size of groups alone, the largest first."""


def with_whole_groups(scheme: CheckpointScheme, sizes: Iterable[int]) -> CheckpointScheme:
    """The scheme, or that of the largest smaller groups which rows of all `sizes` are whole ones of; if none is, it."""
    smaller = GROUPED[GROUPED.index(scheme.name) :] if scheme.name in GROUPED else ()
    found, rows = map(CHECKPOINT_SCHEMES.__getitem__, smaller), set(sizes)
    return next((other for other in found if not any(k % other.multiple for k in rows)), scheme)


def checkpoint_scheme(name: str) -> CheckpointScheme:
    """The scheme of a name. Raises UsageError for others."""
    if name not in CHECKPOINT_SCHEMES:
        raise UsageError(f"scheme {name!r} (allowed: {', '.join(CHECKPOINT_SCHEMES)})")
    return CHECKPOINT_SCHEMES[name]
