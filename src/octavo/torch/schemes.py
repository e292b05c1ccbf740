"""How a layer's weight and its activations are quantized, by name: those of `octavo quantize --scheme`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo import ops
from octavo.errors import NonFiniteError, UsageError
from octavo.ops.w4a8 import GROUP, W4A8Weight


@dataclass(frozen=True)
class Scheme:
    """Round to nearest, weights by channel or group, activations by token.

    dtype   of the stored weight [N, K]; uint8 holds two codes of 4 bits, as `octavo.ops.W4A8Weight` packs them
    groups  each 128 values of K have a scale of their own under that of the channel
    """

    dtype: torch.dtype
    groups: bool = False

    @property
    def packed(self) -> bool:
        """Whether the weight is a W4A8Weight's."""
        return self.dtype == torch.uint8

    def fits(self, k: int) -> bool:
        """Whether there is a weight with rows of this length."""
        return not self.packed or k % GROUP == 0

    def quantize(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """A float weight [N, K] as what is stored, float32 scales [N] and, with groups, float16 [N, K / 128]."""
        values = weight.detach().float()
        if self.packed:
            packed = ops.quantize_w4a8(values.cpu().numpy(), 128 if self.groups else None).to(weight.device)
            return packed.packed, packed.channel_scale, packed.group_scale
        quantize = ops.quantize_int8 if self.dtype == torch.int8 else _fp8
        codes, scale = quantize(values, "channel")
        return codes, scale.reshape(-1), None

    def require(self, weight: torch.Tensor, scale: torch.Tensor, groups: torch.Tensor | None) -> None:
        """Raise NonFiniteError for scales that are NaN or Inf, QuantFormatError for those too large for 8 bits."""
        if self.packed:
            W4A8Weight(weight, scale, groups)
        elif not bool(scale.isfinite().all()):
            raise NonFiniteError("weight_scale holds NaN or Inf")


def _fp8(x: torch.Tensor, granularity: str) -> tuple[torch.Tensor, torch.Tensor]:
    made: tuple[torch.Tensor, torch.Tensor] = ops.quantize_fp8(x, granularity)  # type: ignore[call-overload]
    return made


SCHEMES = {
    "int8-w8a8": Scheme(torch.int8),
    "w4a8": Scheme(torch.uint8),
    "w4a8-g128": Scheme(torch.uint8, groups=True),
    "fp8": Scheme(torch.float8_e4m3fn),
}


def scheme_of(name: str) -> Scheme:
    """The scheme of a name. Raises UsageError for others."""
    if name not in SCHEMES:
        raise UsageError(f"scheme {name!r} (allowed: {', '.join(SCHEMES)})")
    return SCHEMES[name]
