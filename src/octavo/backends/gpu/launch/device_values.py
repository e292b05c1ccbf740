"""Values on the device that are more than a tensor: quantized activations and caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from octavo.backends.gpu.launch.arguments import Q8Activation
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import FLOAT8_MIN_TOKENS, ORDERED_MAX_TOKENS
from octavo.backends.gpu.weights.layout import padded
from octavo.formats.spec import U8

if TYPE_CHECKING:
    import torch


def parts(memory: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The first of `memory` of one dimension, divided into parts of these sizes."""
    starts = accumulate(sizes, initial=0)
    return [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]


class DeviceCopy:
    """Values as they were, one after the other in memory of the host, once `wait` returns."""

    def __init__(self, host: torch.Tensor, wait: Callable[[], None]) -> None:
        self.host, self.nbytes, self._wait = host, host.nbytes, wait

    def data(self) -> U8:
        self._wait()
        found: U8 = self.host.numpy()
        return found


def raw_parts(memory: torch.Tensor, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Memory of bytes as values like these, one after the other."""
    raw = parts(memory, [value.nbytes for value in values])
    return [part.view(value.dtype).view(value.shape) for part, value in zip(raw, values, strict=True)]


def q8_1(memory: torch.Tensor, tokens: int, kp: int, stride: int) -> Q8Activation:
    """Memory of uint8 as it holds q8_1; `stride` is that of the record."""
    import torch

    sizes = (tokens * kp, *(kp // group * stride * 4 for group in (32, 32, 16)))
    codes, d, s, s16 = parts(memory, sizes)
    scale, sums, sums16 = (p.view(torch.float32) for p in (d, s, s16))
    return Q8Activation(codes.view(torch.int8), scale, sums, sums16, stride)


def q8_1_bytes(tokens: int, kp: int, stride: int) -> int:
    """Bytes that hold q8_1."""
    return tokens * kp + kp // 2 * stride


@dataclass(frozen=True, eq=False)
class Activation:
    """Activations [tokens, k] ready for products.

    raw            what `dispatch.activation(tokens)` says, and after it `ordered`
    always_codes   they are quantized for any number of tokens
    both           there is `ordered`, too
    always_halves  they are float16 for any number of tokens, or
    is_planar      float32 as `matvec.float8_kernel` takes them
    """

    raw: torch.Tensor
    tokens: int
    k: int
    always_codes: bool = False
    both: bool = False
    always_halves: bool = False
    is_planar: bool = False

    @property
    def is_q8_1(self) -> bool:
        """Whether they are quantized, and not float16."""
        return self.always_codes or (self.tokens <= INT8_MAX_TOKENS and not self.always_halves)

    @property
    def kp(self) -> int:
        return padded(self.k)

    @property
    def planar(self) -> torch.Tensor | None:
        """float32 [tokens, kp] in planes of kp / 4, where they are that."""
        import torch

        size = 4 * self.tokens * self.kp
        return self.raw[:size].view(torch.float32).view(self.tokens, self.kp) if self.is_planar else None

    @property
    def tp(self) -> int:
        return dispatch.padded_tokens(self.tokens, full=self.always_codes)

    @property
    def q8_1(self) -> Q8Activation:
        """As quantized: codes int8, scales and sums for `tp` tokens."""
        return q8_1(self.raw, self.tokens, self.kp, self.tp)

    @property
    def halves(self) -> torch.Tensor:
        """float16 [tokens, kp]."""
        return self._halves_at(0)

    @property
    def ordered(self) -> torch.Tensor | None:
        """float16 [tokens, kp] as `w4a16.hopper_kernel` takes them."""
        first = _half_bytes if self.always_halves else _first_bytes
        return self._halves_at(first(self.tokens, self.kp)) if self.both else None

    def _halves_at(self, start: int) -> torch.Tensor:
        import torch

        size = self.tokens * self.kp * 2
        return self.raw[start : start + size].view(torch.float16).view(self.tokens, self.kp)


def float_activation(raw: torch.Tensor, tokens: int, k: int, arch: str, deterministic: bool = False) -> Activation:
    """Activations for weights that are e4m3 numbers: planar for a few tokens, float16 and `ordered` for more."""
    planar = deterministic or dispatch.planar(tokens, arch)
    both = not planar and dispatch.ordered(tokens, arch, FLOAT8_MIN_TOKENS)
    return Activation(raw, tokens, k, both=both, always_halves=True, is_planar=planar)


def _first_bytes(tokens: int, kp: int) -> int:
    """Bytes of what `dispatch.activation(tokens)` says."""
    if dispatch.activation(tokens) == "q8_1":
        return q8_1_bytes(tokens, kp, dispatch.padded_tokens(tokens))
    return _half_bytes(tokens, kp)


def _half_bytes(tokens: int, kp: int) -> int:
    """Bytes of float16."""
    return tokens * kp * 2


def half_activation_bytes(tokens: int, k: int) -> int:
    """Bytes that hold an Activation of up to `tokens` that is always float16, or planar."""
    return 2 * _half_bytes(tokens, padded(k))


def activation_bytes(tokens: int, k: int, arch: str, *, codes: bool = False) -> int:
    """Bytes that hold an Activation of up to `tokens`, whatever its kind, or quantized for any number of them."""
    kp = padded(k)
    if codes:
        return q8_1_bytes(tokens, kp, dispatch.padded_tokens(tokens, full=True))
    few, some = min(tokens, INT8_MAX_TOKENS), min(tokens, ORDERED_MAX_TOKENS)
    both = some * kp * 2 * dispatch.ordered(some, arch)
    return max(_first_bytes(few, kp), _first_bytes(tokens, kp), _first_bytes(some, kp) + both)


@dataclass(frozen=True, eq=False)
class TokenCodes:
    """Activations [tokens, k] of 8 bits with a scale for each token, or one for all where `kind` is static.

    kind  "int8_token", "fp8_token", "int8_static" or "fp8_static"
    """

    raw: torch.Tensor
    tokens: int
    k: int
    kind: str

    @property
    def is_int8(self) -> bool:
        """Whether codes are integers, and not e4m3 numbers."""
        return self.kind.startswith("int8")

    @property
    def bytes(self) -> torch.Tensor:
        """The codes as they lie, int8 [tokens, k]."""
        import torch

        return self.raw[: self.tokens * self.k].view(torch.int8).view(self.tokens, self.k)

    @property
    def codes(self) -> torch.Tensor:
        """int8 or float8_e4m3fn [tokens, k]."""
        import torch

        return self.bytes if self.is_int8 else self.bytes.view(torch.float8_e4m3fn)

    @property
    def scales(self) -> torch.Tensor:
        """float32 [tokens]."""
        import torch

        start = _after_codes(self.tokens, self.k)
        return self.raw[start : start + 4 * self.tokens].view(torch.float32)


def token_bytes(tokens: int, k: int) -> int:
    """Bytes that hold TokenCodes."""
    return _after_codes(tokens, k) + 4 * tokens


def _after_codes(tokens: int, k: int) -> int:
    return -(-tokens * k // 16) * 16


GROUPED = ("q8_0", "int4")
"""Kinds of caches of which 32 codes share a scale."""


@dataclass(frozen=True, eq=False)
class Cache:
    """A KV cache [rows, heads, dim].

    data    floats, or bytes of codes: [rows, heads, dim / 2] of int4, two to a byte
    scales  of codes: float16 [rows, heads, dim / 32] of q8_0 and int4, float32 [pages, heads, PAGE_SIZE] of int8 and
            fp8, or [heads] where they are static
    kind    of codes: "q8_0", "int8", "fp8" or "int4"
    """

    data: torch.Tensor
    scales: torch.Tensor | None = None
    kind: str = ""

    @property
    def scaling(self) -> str:
        """ "dynamic" or "static" where heads have scales."""
        if self.scales is None or self.kind in GROUPED:
            return ""
        return "static" if self.scales.ndim == 1 else "dynamic"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)
