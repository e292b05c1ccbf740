# mypy: ignore-errors
"""A lane's registers written out: a tensor of 32 values a warp is a register of each of its lanes.

In an `mma.sync` of 16 rows and 8 tokens lane 4 g + t holds parts of rows g and g + 8 and of token g, and the results of
these rows and tokens 2 t and 2 t + 1. ASM "ptx" is NVIDIA's; without it the same is computed plainly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, dot4

_MMA = """mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, """
MMA = tl.constexpr(f"""{{ .reg .b32 m; mov.b32 m, 0x4B400000;
{_MMA} {{$4, $8, $5, $9}}, {{$12, $13}}, {{m, m, m, m}};
{_MMA} {{$6, $10, $7, $11}}, {{$14, $15}}, {{$0, $1, $2, $3}}; }}""")
MMA_ONTO = tl.constexpr(f"""{_MMA} {{$4, $8, $5, $9}}, {{$12, $13}}, {{$16, $17, $18, $19}};
{_MMA} {{$6, $10, $7, $11}}, {{$14, $15}}, {{$0, $1, $2, $3}};""")
MMA_TF32 = tl.constexpr("""mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};""")


@triton.jit
def _pairs(a, b):
    """Sums over a quad of the products of what its lanes hold: a of row g, b of token n, [W, 8, 8]."""
    W: tl.constexpr = a.shape[0] // 32
    rows = tl.broadcast_to(tl.reshape(a, (W, 8, 1, 4)), (W, 8, 8, 4))
    tokens = tl.broadcast_to(tl.reshape(b, (W, 1, 8, 4)), (W, 8, 8, 4))
    if a.dtype == tl.int32:
        product = dot4(rows, tokens, tl.zeros_like(rows), "none")
    else:
        product = rows * tokens
    return tl.sum(product, 3)


@triton.jit
def _lanes(product):
    """[W, 8, 8] as each lane holds it: row g and tokens 2 t and 2 t + 1."""
    W: tl.constexpr = product.shape[0]
    even, odd = tl.split(tl.reshape(product, (W, 8, 4, 2)))
    return tl.reshape(even, (W * 32,)), tl.reshape(odd, (W * 32,))


@triton.jit
def _plain(a, b):
    """The results of an `mma.sync`, four of each lane, from what lanes hold."""
    c0, c1 = _lanes(_pairs(a[0], b[0]) + _pairs(a[2], b[1]))
    c2, c3 = _lanes(_pairs(a[1], b[0]) + _pairs(a[3], b[1]))
    return c0, c1, c2, c3


@triton.jit
def mma_tf32(a, b, c, ASM: tl.constexpr):
    """c + the product over 8 floats: lanes hold numbers t and t + 4 of rows g and g + 8 and of token g."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            MMA_TF32, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )
    else:
        d = _plain(a, b)
        out = (c[0] + d[0], c[1] + d[1], c[2] + d[2], c[3] + d[3])
    return out


@triton.jit
def mma(a, b, x, ASM: tl.constexpr):
    """MAGIC + the products of rows g and g + 8, four words of a lane each, with tokens 2 t and 2 t + 1."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            MMA, "=&r,=&r,=&r,=&r" + ",r" * 12,
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], x[0], x[1], x[2], x[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )
    else:
        near = _plain((a[0], b[0], a[1], b[1]), (x[0], x[1]))
        far = _plain((a[2], b[2], a[3], b[3]), (x[2], x[3]))
        out = (near[0] + far[0] + MAGIC, near[1] + far[1] + MAGIC, near[2] + far[2] + MAGIC, near[3] + far[3] + MAGIC)
    return out


@triton.jit
def mma_onto(c, a, b, x, ASM: tl.constexpr):
    """c + the products of rows g and g + 8, four words of a lane each, with tokens 2 t and 2 t + 1."""
    if ASM == "ptx":
        out = tl.inline_asm_elementwise(
            MMA_ONTO, "=&r,=&r,=&r,=&r" + ",r" * 16,
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], x[0], x[1], x[2], x[3], c[0], c[1], c[2], c[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )
    else:
        near = _plain((a[0], b[0], a[1], b[1]), (x[0], x[1]))
        far = _plain((a[2], b[2], a[3], b[3]), (x[2], x[3]))
        out = (c[0] + near[0] + far[0], c[1] + near[1] + far[1], c[2] + near[2] + far[2], c[3] + near[3] + far[3])
    return out


@triton.jit
def here(value, ASM: tl.constexpr):
    """value; the compiler moves no loads across this place."""
    if ASM == "ptx":
        value = tl.inline_asm_elementwise(
            "bar.warp.sync 0xffffffff; mov.b32 $0, $1;",
            "=r,r,~{memory}", [value], dtype=tl.int32, is_pure=False, pack=1,
        )
    return value
