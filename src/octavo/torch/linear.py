"""`QuantLinear`: what nn.Linear does, with a quantized weight and activations that are quantized as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import NonFiniteError, OctavoError, UsageError
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme, checkpoint_scheme
from octavo.torch import operators
from octavo.torch.schemes import (
    Parts,
    dequantize,
    empty,
    product_of,
    quantize_weight,
    require_scales,
    stored_row,
    stored_weight,
)

OUT_NAMES = {dtype: name for name, dtype in operators.OUT_TYPES.items()}


class QuantLinear(nn.Module):
    """y [..., N] = x [..., K] W^T + bias, for inference: backward through it raises UsageError.

    x is of any float type, which y has too. In int8-w8a8, w4a8, w4a8-g128 and fp8 each of its rows is quantized with a
    scale of its own; in the other schemes it stays floats, but on the CPU products with integer codes and 4-bit floats
    take it as q8_1 (8 bits, a scale for each 32 values), as models are run, and on a GPU as float16. Buffers, which are
    in the state_dict and keep their types whatever the module is cast to:

    weight        int8 or float8_e4m3fn [N, K]; of w4a8 uint8 [N, K / 2]; where x stays floats uint8 [N, bytes of a row]
                  of the block format `row`, scales among them
    weight_scale  float32 [N]; of nvfp4a16 [], of all values; None in other schemes whose x stays floats
    group_scale   float16 [N, K / 128], of w4a8-g128
    bias          float32, float16 or bfloat16 [N], or None

    A new layer's weight is zeros, for `load_state_dict`; `from_linear` quantizes one. Raises UsageError for an unknown
    scheme, or sizes that it has no weight of.
    """

    weight: Tensor
    weight_scale: Tensor | None
    group_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, scheme: str = "int8-w8a8", *, device: Any = None
    ) -> None:
        super().__init__()
        kind, n, k = checkpoint_scheme(scheme), out_features, in_features
        if min(n, k) < 1 or k % kind.multiple:
            raise UsageError(f"a layer of {k} inputs and {n} outputs as {scheme} (allowed: inputs {_allowed(kind)})")
        self.in_features, self.out_features, self.scheme, self._kind = k, n, scheme, kind
        self._product = product_of(kind)
        self.row = stored_row(kind, k) if self._product == "stored" else None
        with torch.inference_mode(False):  # so that torch counts changes of the buffers
            parts = empty(kind, n, k, device)
            added = torch.zeros(n, device=device) if bias else None
        self.register_buffer("weight", parts.weight)
        self.register_buffer("weight_scale", parts.scale)
        self.register_buffer("group_scale", parts.groups)
        self.register_buffer("bias", added)

    @classmethod
    def from_linear(cls, linear: nn.Linear, scheme: str = "int8-w8a8", coded: Coded | None = None) -> QuantLinear:
        """The layer of a float one's weight, on its device; the bias is kept as it is.

        coded  the weight in the scheme (default: rounded to nearest)

        Raises UsageError as the class does, and NonFiniteError for a weight with NaN or Inf.
        """
        require_values(linear, "the layer")
        made = cls(linear.in_features, linear.out_features, False, scheme, device="meta")
        with torch.inference_mode(False), torch.no_grad():
            found = quantize_weight(made._kind, linear.weight) if coded is None else stored_weight(made._kind, coded)
            device = linear.weight.device
            made.weight = found.weight.to(device)
            made.weight_scale = None if found.scale is None else found.scale.to(device)
            made.group_scale = None if found.groups is None else found.groups.to(device)
            if linear.bias is not None:
                bias = linear.bias.detach().clone()
                made.bias = bias if bias.dtype in OUT_NAMES else bias.float()
        return made.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """y of x, of its type and with its leading dimensions."""
        if not x.is_floating_point():
            raise UsageError(f"x is {x.dtype} (allowed: floats)")
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise UsageError(f"x has the shape {list(x.shape)} (allowed: [..., {self.in_features}])")
        rows = x.reshape(-1, x.shape[-1])
        if rows.dtype not in OUT_NAMES:
            rows = rows.float()
        after: dict[str, Any] = {"bias": self.bias, "out_dtype": OUT_NAMES[rows.dtype]}
        if self.row is not None:
            y = operators.stored_gemm(rows, self.weight, self.row, self.weight_scale, **after)
        elif self._product == "fp8":
            values, scale = operators.quantize_fp8(rows, "token")
            y = operators.fp8_gemm(values, self.weight, scale, self.weight_scale, **after)
        else:
            codes, scale = operators.quantize_int8(rows, "token")
            if self._product == "w4a8":
                y = operators.w4a8_gemm(codes, self.weight, scale, self.weight_scale, self.group_scale, **after)
            else:
                y = operators.int8_gemm(codes, self.weight, scale, self.weight_scale, **after)
        made: Tensor = y.reshape(*x.shape[:-1], self.out_features).to(x.dtype)
        return made

    def dequantize(self) -> Tensor:
        """The weight's values, float32 [N, K] on its device: with floats as activations, `forward` is their product."""
        return dequantize(self._kind, self._parts, self.in_features)

    @property
    def _parts(self) -> Parts:
        return Parts(self.weight, self.weight_scale, self.group_scale)

    def extra_repr(self) -> str:
        """Sizes, whether there is a bias, and the scheme."""
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, scheme={self.scheme!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantLinear:
        """Moves to devices and the like; casts to other types are undone, for they would change what weights mean."""

        def keeping_type(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        super()._apply(keeping_type, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:
        """As every module's, but tensors of another type are errors, where torch would cast them, and so are scales
        that no weight has."""
        for name, own in self.named_buffers(recurse=False):
            given = state_dict.get(prefix + name)
            if given is not None and not (given.dtype == own.dtype or (name == "bias" and given.dtype in OUT_NAMES)):
                error_msgs.append(f"{prefix}{name} is {given.dtype} (allowed: {own.dtype})")
        if error_msgs:
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if not self.weight.is_meta:
            try:
                require_scales(self._kind, self._parts, self.in_features)
            except OctavoError as error:
                error_msgs.append(f"{prefix}weight: {error}")


def require_values(linear: nn.Linear, name: str) -> None:
    """Raise UsageError for a layer without values, NonFiniteError for a weight with NaN or Inf."""
    if linear.weight.is_meta:
        raise UsageError(f"{name} has no values: its weight is on meta")
    if not bool(torch.isfinite(linear.weight.detach()).all()):
        raise NonFiniteError(f"{name}: the weight holds NaN or Inf")


def _allowed(kind: CheckpointScheme) -> str:
    multiple = kind.multiple
    return f"from {multiple} on, multiples of {multiple}" if multiple > 1 else "and outputs from 1 on"
