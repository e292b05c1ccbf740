"""Products with many tokens: codes become float16 in registers on their way into the matrix units."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _nibbles(byte, scale, minimum, BIAS: tl.constexpr, HAS_MIN: tl.constexpr, HIGH: tl.constexpr, ASM: tl.constexpr):
    """float16 (nibble - BIAS) * scale - minimum of the low or high nibbles of bytes."""
    if ASM == "ptx":
        TAKE: tl.constexpr = "shr.u32 b, $2, 4;" if HIGH else "mov.b32 b, $2;"
        SUB: tl.constexpr = "0xe408e408" if BIAS == 8 else "0xe400e400"
        HEAD: tl.constexpr = "{ .reg .b32 b, c, p, q; mov.b32 c, " + SUB + "; " + TAKE + (
            " prmt.b32 p, b, 0x64646464, 0x4140; prmt.b32 q, b, 0x64646464, 0x4342;"
            " and.b32 p, p, 0xff0fff0f; and.b32 q, q, 0xff0fff0f;"
            " add.f16x2 p, p, c; add.f16x2 q, q, c;"
        )  # fmt: skip
        if HAS_MIN:
            BODY: tl.constexpr = HEAD + " fma.rn.f16x2 $0, p, $3, $5; fma.rn.f16x2 $1, q, $4, $6; }"
            return tl.inline_asm_elementwise(
                BODY, "=r,=r,r,r,r,r,r", [byte, scale, -minimum], dtype=tl.float16, is_pure=True, pack=4
            )
        PLAIN: tl.constexpr = HEAD + " mul.f16x2 $0, p, $3; mul.f16x2 $1, q, $4; }"
        return tl.inline_asm_elementwise(PLAIN, "=r,=r,r,r,r", [byte, scale], dtype=tl.float16, is_pure=True, pack=4)
    code = ((byte >> 4) if HIGH else byte) & 15
    value = (code.to(tl.float16) - BIAS) * scale
    if HAS_MIN:
        value -= minimum
    return value


@triton.jit
def matmul4_kernel(
    codes, scale, minimum, x, y, n, m, y_stride,
    kp: tl.constexpr, HAS_MIN: tl.constexpr, BIAS: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, GROUP_M: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """y f32 [M, N] = x W^T; codes u8 [N, Kp/2], scale and minimum f16 [N, Kp/32] (experiment: one level)."""
    pid = tl.program_id(0)
    n_tiles, m_tiles = tl.cdiv(n, BN), tl.cdiv(m, BM)
    group = pid // (GROUP_M * m_tiles)
    size = tl.minimum(n_tiles - group * GROUP_M, GROUP_M)
    pn = group * GROUP_M + (pid % (GROUP_M * m_tiles)) % size
    pm = (pid % (GROUP_M * m_tiles)) // size
    rn = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BN, BM), tl.float32)
    rk = tl.arange(0, 32)
    w_at = codes + rn[:, None].to(tl.int64) * (kp // 2) + rk[None, :]
    s_at = scale + rn * (kp // 32)
    m_at = minimum + rn * (kp // 32)
    for i in range(kp // 64):
        byte = tl.load(w_at + i * 32)
        g = (i // 2) * 4 + (i % 2)
        k = (i // 2) * 128 + (i % 2) * 32
        s_low, s_high = tl.load(s_at + g)[:, None], tl.load(s_at + g + 2)[:, None]
        if HAS_MIN:
            m_low, m_high = tl.load(m_at + g)[:, None], tl.load(m_at + g + 2)[:, None]
        else:
            m_low, m_high = s_low, s_high
        s_low, s_high = tl.broadcast_to(s_low, (BN, 32)), tl.broadcast_to(s_high, (BN, 32))
        m_low, m_high = tl.broadcast_to(m_low, (BN, 32)), tl.broadcast_to(m_high, (BN, 32))
        low = _nibbles(byte, s_low, m_low, BIAS, HAS_MIN, False, ASM)
        acc = tl.dot(low, x.load([pm * BM, k]).T, acc)
        high = _nibbles(byte, s_high, m_high, BIAS, HAS_MIN, True, ASM)
        acc = tl.dot(high, x.load([pm * BM, k + 64]).T, acc)
    rm = pm * BM + tl.arange(0, BM)
    tl.store(y + rm[None, :].to(tl.int64) * y_stride + rn[:, None], acc, mask=(rm[None, :] < m) & (rn[:, None] < n))
