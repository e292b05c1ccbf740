"""Activations of int8 with a scale for each token, as the integer kernels read them: where each part lies."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.cpu.matmul.quantize_kernel import Source
from octavo.backends.cpu.matmul.w8a8.gemm import GEMM_MIN_TOKENS
from octavo.backends.cpu.matmul.w8a8.int8_kernel import NARROW, WIDE, tiles_of
from octavo.backends.cpu.matmul.w8a8.quantize_kernel import CHUNK, quantize_token_kernel
from octavo.formats.spec import U8, AnyArray
from octavo.jit.program import KernelCall, address


def whole(k: int) -> int:
    """Values of a row filled up to whole chunks."""
    return -(-k // CHUNK) * CHUNK


@dataclass(frozen=True, eq=False)
class Int8Tokens:
    """Activations [tokens, k] in `raw`: codes, then float32 scales, then two int32 for each token, in which sums begin.

    Few tokens are rows of codes; more are tiles of WIDE and then of NARROW tokens.
    """

    raw: U8
    tokens: int
    k: int

    @property
    def wide(self) -> int:
        """Tiles of WIDE tokens."""
        return tiles_of(self.tokens)[0] if self.tokens >= GEMM_MIN_TOKENS else 0

    @property
    def narrow(self) -> int:
        """Tiles of NARROW tokens."""
        return tiles_of(self.tokens)[1] if self.tokens >= GEMM_MIN_TOKENS else 0

    @property
    def scales(self) -> int:
        """Where the scales lie."""
        return address(self.raw) + rows_of(self.tokens) * whole(self.k)

    def begins(self, offset: int) -> int:
        """Where -offset times the sum of each token's codes lies; `offset` is 128 or 8."""
        return self.scales + 4 * self.tokens * (1 if offset == 128 else 2)


def rows_of(tokens: int) -> int:
    """Tokens with those that fill the last tile."""
    return tokens if tokens < GEMM_MIN_TOKENS else -(-tokens // NARROW) * NARROW


def token_bytes(tokens: int, k: int) -> int:
    """Bytes that hold Int8Tokens; more for more tokens."""
    return rows_of(tokens) * whole(k) + 12 * tokens


def quantize_tokens(
    out: Int8Tokens, x: AnyArray, source: Source = "values", static_scale: float | None = None,
    least: AnyArray | int = 0, **other: float | AnyArray,
) -> KernelCall:
    """The call that quantizes x [T, K]; `least` and `other` are those of `quantize_token_kernel`."""
    return KernelCall(
        quantize_token_kernel(source, static_scale is not None), out.tokens, given=static_scale or 0.0, least=least,
        codes=out.raw, wide_tokens=out.wide * WIDE, tiled=out.tokens >= GEMM_MIN_TOKENS, scales=out.scales,
        begins_8=out.begins(128), begins_4=out.begins(8), k=out.k, x=x, x_stride=x.strides[0], **other,
    )
