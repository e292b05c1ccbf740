# mypy: ignore-errors
"""GEMM of mixed inputs for compute capability 9.0, in Gluon: y [M, N] of float16 x [M, K] and quantized weights.

Algorithm: CUTLASS's mixed-input GEMM for Hopper, with Marlin's decoding of codes by LOP3 (arXiv 2408.11743).
Tile:
    TMA ring     codes | scales | x^T        y^T = W x^T, so that a few tokens fill an 8-wide instruction
    stage s+1    unpack [rows, 32]           the warp group's ALUs
    stage s      wgmma, W from registers     the tensor cores, asynchronously
Bound: instructions for decoding, 1.6 a 4-bit code and 2.5 a 6-bit one, then the tensor cores, whose tiles do not fill
    the card (docs/log.md, "What many tokens of a product wait for").
Tried: docs/log.md: "What many tokens of a product wait for".
Twin: `octavo.backends.reference.ops.mul_mat`

Codes become float16 in the registers that tensor cores read them from, while these still multiply the 32 values
before. As in `int8_hopper_kernel`, y^T = W x^T and a ring of tiles is filled ahead. A lane unpacks four neighbouring
codes at a time, but holds values 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 for `wgmma`. The order of K is free as long as
both factors have the same. So codes stay where they are unpacked, and whoever writes x puts its values into the order
that `reordered` gives. `scales_kernel` makes float16 scales of groups beforehand, from whatever levels a layout has.
Zero points are taken off codes before they are scaled, which is exact and costs what a constant offset does.

All that is read of weights goes through the ring, and its first tiles are asked for before x is waited for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile, reinterpret
from octavo.backends.gpu.matmul.activations import reordered
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import (
    barriers,
    column_halves,
    rows_and_tokens,
    tile_scheduler,
    whole_sums,
)
from octavo.backends.gpu.weights.decode import scales_and_zeros_of, scales_of

TILE = gl.constexpr(128)  # values of K of a tile: its low codes, then its high ones
GROUP_M = gl.constexpr(8)  # rows of tiles that share what they read in the L2


@triton.jit
def reorder_kernel(x, out, size, B: tl.constexpr, PDL: tl.constexpr):
    """out float16 [size] = x, `reordered`."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < size, other=0.0)
    tl.store(out + at, reordered(value), mask=at < size)


@triton.jit
def _pair(low, high):
    """The bits of two float16 in an int32."""
    bits = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def scales_kernel(w, out, n, stride, BLOCK_N: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr):
    """out int32 [kp / 2G, stride]: pairs of float16 scales of w; or [kp / G, stride], rows of minima between.

    Minima are negative, zero points have 1024 added. A program has PAIRS of groups.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    L: tl.constexpr = w.layout
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    row = tl.minimum(at, n - 1).to(tl.int64)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)[None, :]
    inside = pair < L.kp // (2 * L.group)
    low, high, low_min, high_min = scales_of(w, row, pair * (L.group // 16), inside)  # [BLOCK_N, PAIRS]
    place = (pair * (2 if L.has_min else 1)).to(tl.int64) * stride + at
    written = inside & (at < n)
    tl.store(out + place, _pair(low, high), mask=written)
    if L.has_min:
        low_term, high_term = -low_min, -high_min
        if L.has_zero:
            _, _, low_zero, high_zero = scales_and_zeros_of(w, row, pair * (L.group // 16), inside, "none")
            low_term, high_term = 1024.0 + low_zero, 1024.0 + high_zero
        tl.store(out + stride + place, _pair(low_term, high_term), mask=written)


@triton.jit
def folded_scales_kernel(
    w, out, factors, n, stride, BLOCK_N: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr
):
    """As `scales_kernel`, of codes that are floats: scales of a row times a power of two that brings the largest to
    2^14 and more, so that float16 holds what is within 2^-24 of it; `factors` float32 [n] take that power off sums, and
    the 2^-14 or 2^-8 of codes that become float16 by their bits (`e2m1_ptx`, `e4m3_ptx`)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    L: tl.constexpr = w.layout
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    row = tl.minimum(at, n - 1).to(tl.int64)
    COUNT: tl.constexpr = L.kp // (2 * L.group)
    most = tl.zeros((BLOCK_N, PAIRS), tl.float32)
    for first in range(0, COUNT, PAIRS):
        pair = first + tl.arange(0, PAIRS)[None, :]
        low, high, _, _ = scales_of(w, row, pair * (L.group // 16), pair < COUNT)  # [BLOCK_N, PAIRS]
        most = tl.maximum(most, tl.maximum(tl.abs(low), tl.abs(high)))
    exponent = tl.max(most, 1)[:, None].to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    tl.store(factors + at, power * (1 / 64 if L.float8 else 2.0 * L.step), mask=at < n)
    for first in range(0, COUNT, PAIRS):
        pair = first + tl.arange(0, PAIRS)[None, :]
        low, high, _, _ = scales_of(w, row, pair * (L.group // 16), pair < COUNT)
        place = pair.to(tl.int64) * stride + at
        bits = _pair(low * inverse * 16384.0, high * inverse * 16384.0)
        tl.store(out + place, bits, mask=(pair < COUNT) & (at < n))


@gluon.constexpr_function
def e2m1_ptx():
    """PTX as `unpack_ptx`'s, of e2m1 codes: a sign, two bits of exponent and one of mantissa are the upper byte of a
    float16 2^-14 times as large, subnormal ones too. Scales have the 2^14."""
    lines = [
        ".reg .b16 l, u;", ".reg .b32 a, b, s, z, s0, s1;", "mov.b32 {l, u}, $5;", "mov.b32 s0, {l, l};",
        "mov.b32 s1, {u, u};", "mov.b32 z, 0;",
    ]
    for i in range(2):  # low codes, and high ones, whose signs are where they are to be
        sign = "shl.b32 b, $4, 4; and.b32 s, b, 0x80808080;" if i == 0 else "and.b32 s, $4, 0x80808080;"
        lines.append(f"{'shr.u32 a, $4, 3;' if i else 'shl.b32 a, $4, 1;'} {sign}")
        lines.append("lop3.b32 a, a, 0x0E0E0E0E, s, 0xEA;")  # (a & mask) | s: four upper bytes
        lines.append(f"prmt.b32 b, a, z, 0x2404; mul.f16x2 ${2 * i}, b, s{i};")
        lines.append(f"and.b32 b, a, 0xFF00FF00; mul.f16x2 ${2 * i + 1}, b, s{i};")
    return "{ " + " ".join(lines) + " }", ",".join(["=r"] * 4 + ["r"] * 5)


@gluon.constexpr_function
def e4m3_ptx(part):
    """PTX as `unpack_ptx`'s for 8 bits, of e4m3 numbers: a sign, four bits of exponent and three of mantissa are the
    bits from 7 on of a float16 2^-8 times as large, subnormal ones too, with the sign moved by one more."""
    scale = ("l, l", "u, u")[part]
    lines = [".reg .b16 l, u;", ".reg .b32 a, b, s;", "mov.b32 {l, u}, $3;", f"mov.b32 s, {{{scale}}};"]
    for odd in range(2):  # bytes 0 and 2, then 1 and 3
        lines.append("mov.b32 a, $2;" if odd else "shl.b32 a, $2, 8;")
        lines.append("shr.u32 b, a, 1; and.b32 b, b, 0x3F803F80; lop3.b32 b, a, 0x80008000, b, 0xEA;")
        lines.append(f"mul.f16x2 ${odd}, b, s;")
    return "{ " + " ".join(lines) + " }", ",".join(["=r"] * 2 + ["r"] * 5)


@gluon.constexpr_function
def unpack_ptx(bits, signed, has_min, has_zero, part):
    """PTX that makes float16 of words of four codes, bytes 0 and 2 in one register and 1 and 3 in the next.

    Words of fewer than 8 bits hold low and high codes, which gives four registers; of 5 and 6 bits the upper ones are
    those for half `part` of a half tile. A word of 8 bits has low codes (part 0) or high ones. Scales and minima are
    pairs, for low and high codes. Ten bits below 1024 in float16 are a number added to it: taking away 1024, and what
    made a signed code unsigned or the zero point, is exact, and so only the product with the scale is rounded. High
    codes stay where they are, times 16, unless they have zero points.
    """
    zero = 1 << (bits - 1) if signed else 0
    upper = bits - 4 if bits < 8 else 0
    words, values = (2 if upper else 1), (2 if bits < 8 else 1)
    first = 2 * values
    lines = [".reg .b16 l, u;", ".reg .b32 w, h, v, z, y, c, q;"]
    # 1024 and `zero`; 1024 and 16 times that; 1 / 16; -64 and -zero
    halves = (("z", 0x6400 + zero), ("y", 0x6400 + 16 * zero), ("q", 0x2C00), ("c", 0xD400 + 16 * zero))
    lines += [f"mov.b32 {name}, {hex(half * 0x10001)};" for name, half in halves]
    for i, name in enumerate(["s", "m"] if has_min else ["s"]):
        lines.append(f".reg .b32 {name}0, {name}1; mov.b32 {{l, u}}, ${first + words + 4 * i};")
        lines.append(f"mov.b32 {name}0, {{l, l}}; mov.b32 {name}1, {{u, u}};")
    if bits == 8:
        lines.append(f"mov.b32 y, 0x64006400; xor.b32 w, ${first}, {'0x80808080' if signed else '0'};")
    for odd in range(2):
        if bits < 8:
            lines.append(f"shr.u32 w, ${first}, {8 * odd};")
        for i in range(values):
            which, apart = (part if bits == 8 else i), i and not has_zero
            if bits == 8:
                lines.append(f"prmt.b32 v, w, y, {'0x5351' if odd else '0x5250'};")
            elif apart:
                lines.append("lop3.b32 v, w, 0x00F000F0, y, 0x6A;")
            else:
                lines.append(f"shr.u32 h, w, {4 * i}; lop3.b32 v, h, 0x000F000F, z, 0x6A;")
            if upper:
                right = upper * i + 8 * odd + 4 * part - (8 if apart else 4)
                mask = ((1 << upper) - 1) << (8 if apart else 4)
                lines.append(f"{'shr.u32' if right >= 0 else 'shl.b32'} h, ${first + 1}, {abs(right)};")
                lines.append(f"lop3.b32 v, h, {hex(mask * 0x10001)}, v, 0x6A;")
            if apart:
                lines.append("fma.rn.f16x2 v, v, q, c;")
            else:
                lines.append(f"sub.f16x2 v, v, {f'm{which}' if has_zero else 'z'};")
            end = f"fma.rn.f16x2 ${2 * i + odd}, v, s{which}, m{which};"
            lines.append(end if has_min and not has_zero else f"mul.f16x2 ${2 * i + odd}, v, s{which};")
    inputs = words + (8 if has_min else 4)
    return "{ " + " ".join(lines) + " }", ",".join(["=r"] * first + ["r"] * inputs)


@gluon.constexpr_function
def of_bytes_ptx(layout, part):
    """PTX for codes of 8 bits."""
    return e4m3_ptx(part) if layout.float8 else unpack_ptx(8, layout.signed, layout.has_min, layout.has_zero, part)


class Sources(NamedTuple):
    """Descriptors of tiles: of the plane of 4 or 8 bits, that of 2 bits or of 1 or None, what `scales_kernel` makes,
    and x."""

    codes: Any
    codes2: Any
    scales: Any
    x: Any


class W4A16Ring(NamedTuple):
    """Shared memory for tiles of `Sources`, two of x in a stage, and a barrier for each stage."""

    codes: Any
    codes2: Any
    scales: Any
    x: Any
    ready: Any


@gluon.jit
def memory_of(tiles, STAGES: gl.constexpr):
    """Shared memory for tiles of a source; anything where there is none."""
    memory = 0
    if tiles is not None:
        memory = gl.allocate_shared_memory(tiles.dtype, [STAGES] + tiles.block_type.shape, tiles.layout)  # noqa: RUF005
    return memory


@gluon.jit
def send_weights(sources, ring, slot, step, row, there, X_TILES: gl.constexpr = 2):
    """Have a tile's codes and scales copied to a stage of the ring, if there is such a tile; x is expected, too."""
    bar = ring.ready.index(slot)
    WEIGHTS: gl.constexpr = sources.codes.block_type.nbytes + sources.scales.block_type.nbytes
    MORE: gl.constexpr = 0 if sources.codes2 is None else sources.codes2.block_type.nbytes
    mbarrier.expect(bar, WEIGHTS + MORE + X_TILES * sources.x.block_type.nbytes, pred=there)
    copy_tile(sources.codes, [row, step * sources.codes.block_type.shape[1]], bar, ring.codes.index(slot), pred=there)
    if sources.codes2 is not None:
        at = step * sources.codes2.block_type.shape[1]
        copy_tile(sources.codes2, [row, at], bar, ring.codes2.index(slot), pred=there)
    copy_tile(
        sources.scales, [step * sources.scales.block_type.shape[0], row], bar, ring.scales.index(slot), pred=there
    )


@gluon.jit
def send_tokens(x, ring, slot, step, token, there):
    """Have a tile's values of x copied to a stage of the ring."""
    for i in gl.static_range(2):
        at = step * TILE + i * (TILE // 2)
        copy_tile(x, [token, at], ring.ready.index(slot), ring.x.index(slot * 2 + i), pred=there)


@gluon.jit
def _of_codes(pairs, first: gl.constexpr, step: gl.constexpr, G: gl.constexpr, layout: gl.constexpr):
    """For each of 32 codes the pair of its group, in row `first` or, `step` on, in the next one's, of shared int32
    [pairs, rows]: [rows, 32]."""
    R: gl.constexpr = pairs.shape[1]
    value = pairs.slice(first, 1, 0).permute((1, 0)).load(layout)  # [rows, 1]
    if G == 16:
        place = gl.arange(0, 32, gl.SliceLayout(0, layout))[None, :]
        other = pairs.slice(first + step, 1, 0).permute((1, 0)).load(layout)
        value = gl.where(place < 16, value, other)
    return gl.broadcast(value, gl.zeros([R, 32], gl.int32, layout))[0]


@gluon.jit
def _unpacked(inputs, TWO: gl.constexpr, PTX: gl.constexpr):
    """Float16 of codes: of 8 bits one tensor, of fewer the low and high ones; `inputs` as `unpack_ptx` wants them."""
    if TWO:
        out = gl.inline_asm_elementwise(PTX[0], PTX[1], inputs, dtype=(gl.float16, gl.float16), is_pure=True, pack=4)
    else:
        out = gl.inline_asm_elementwise(PTX[0], PTX[1], inputs, dtype=gl.float16, is_pure=True, pack=4)
    return out


@gluon.jit
def _upper(codes2, LAYOUT: gl.constexpr, layout: gl.constexpr):
    """Of the plane of a tile's upper bits, int8 [rows, 32]: those of 16 codes and the next 16, whose single bits are
    two higher up in the same bytes, where `unpack_ptx` has both."""
    value = codes2.load(layout)  # int8 [rows, 32], or [rows, 16]
    if LAYOUT.bits == 5:
        R: gl.constexpr = value.shape[0]
        NEXT: gl.constexpr = "shr.u32 $0, $1, 2;"
        other = gl.inline_asm_elementwise(NEXT, "=r,r", [value], dtype=gl.int8, is_pure=True, pack=4)
        both = gl.join(value, other).permute((0, 2, 1)).reshape([R, 32])
        value = gl.convert_layout(both, layout, assert_trivial=True)
    return value


@gluon.jit
def halves_of(codes, codes2, scales, half: gl.constexpr, LAYOUT: gl.constexpr, layout: gl.constexpr):
    """Float16 [rows, 32] twice, of a half of a tile's low codes and of that of its high ones."""
    G: gl.constexpr = LAYOUT.group
    STEP: gl.constexpr = 2 if LAYOUT.has_min else 1
    FIRST: gl.constexpr = half * 32 // G * STEP
    pairs = (_of_codes(scales, FIRST, STEP, G, layout),)
    if LAYOUT.has_min:
        pairs = pairs + (_of_codes(scales, FIRST + 1, STEP, G, layout),)  # noqa: RUF005
    words = (codes.slice(half * 32, 32, 1).load(layout),)  # int8 [BLOCK_N, 32]
    if LAYOUT.bits == 8:
        LOW: gl.constexpr = of_bytes_ptx(LAYOUT, 0)
        HIGH: gl.constexpr = of_bytes_ptx(LAYOUT, 1)
        upper = (codes.slice(64 + half * 32, 32, 1).load(layout),)
        low = _unpacked(words + pairs, False, LOW)
        high = _unpacked(upper + pairs, False, HIGH)
    elif LAYOUT.table is not None:
        E2M1: gl.constexpr = e2m1_ptx()
        low, high = _unpacked(words + pairs, True, E2M1)
    else:
        PTX: gl.constexpr = unpack_ptx(LAYOUT.bits, LAYOUT.signed, LAYOUT.has_min, LAYOUT.has_zero, half)
        if LAYOUT.bits > 4:
            words = words + (_upper(codes2, LAYOUT, layout),)  # noqa: RUF005
        low, high = _unpacked(words + pairs, True, PTX)
    return low, high


@gluon.jit
def factor_of(value, layout: gl.constexpr):
    """Unpacked float16 [rows, 32] as `wgmma` takes them, each where it is: four of a lane become two and two."""
    R: gl.constexpr = value.shape[0]
    value = value.reshape([R, 2, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([R, 32])
    return gl.convert_layout(value, layout, assert_trivial=True)


@gluon.jit
def _store(acc, terms, y, row, token, m, n, WARPS: gl.constexpr):
    """y f32 [tokens, rows] = acc [rows, tokens] + terms."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    BELOW: gl.constexpr = 2 if R >= 64 else 1
    out: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [BELOW, WARPS // BELOW], [0, 1])
    value = gl.convert_layout(acc, out)
    rows, tokens, inside = rows_and_tokens(row, token, m, n, R, C, 1, out)
    if y.factors is not None:
        value *= gl.load(y.factors + rows, mask=rows < n, other=0.0)
    for i in gl.static_range(len(terms)):
        value += gl.load(terms[i].data + tokens.to(gl.int64) * terms[i].stride + rows, mask=inside, other=0.0)
    gl.store(y.data + tokens.to(gl.int64) * y.stride + rows, value, mask=inside)


@gluon.jit
def multiply_tile(acc, ring, slot, rows: gl.constexpr, first: gl.constexpr, LAYOUT: gl.constexpr, mma: gl.constexpr):
    """acc + a stage's products of `rows` rows from `first` on, of which the last half's may still be under way."""
    factor: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    codes = ring.codes.index(slot).slice(first, rows, 0)
    codes2 = codes
    if LAYOUT.bits % 8 > 4:
        codes2 = ring.codes2.index(slot).slice(first, rows, 0)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])  # as the copy engine leaves rows of scales
    pairs: gl.constexpr = ring.scales.shape[1]
    total: gl.constexpr = ring.scales.shape[2]
    scales = reinterpret(ring.scales.index(slot), gl.int32, [pairs, total], plain).slice(first, rows, 1)
    for half in gl.static_range(2):
        low, high = halves_of(codes, codes2, scales, half, LAYOUT, bytes_)
        # W [rows, 32] @ x^T [32, BLOCK_M]
        tokens = ring.x.index(slot * 2).slice(half * 32, 32, 1).permute((1, 0))
        acc = warpgroup_mma(factor_of(low, factor), tokens, acc, is_async=True)
        tokens = ring.x.index(slot * 2 + 1).slice(half * 32, 32, 1).permute((1, 0))
        acc = warpgroup_mma(factor_of(high, factor), tokens, acc, is_async=True)
        acc = warpgroup_mma_wait(2, [acc])
    return acc


@gluon.jit
def w4a16_hopper_kernel(
    x, codes, codes2, scales, terms, y, splits, size, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr
):
    """A program a tile of rows of W by tokens and a part of K; `size` is a `ProblemSize`.

    x, codes, codes2 and scales are `Sources`, x float16 [M, K] as `reordered` gives it; y is `Results`.
    """
    if PDL:
        gdc_launch_dependents()
    m, n, k = size.m, size.n, size.k
    BLOCK_M: gl.constexpr = shape.block_m
    BLOCK_N: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    tile, split, row, token, first, end = tile_scheduler(
        gl.program_id(0), m, n, k, BLOCK_M, BLOCK_N, TILE, GROUP_M, shape.split_k
    )
    sources = Sources(codes, codes2, scales, x)
    ring = W4A16Ring(
        memory_of(codes, STAGES), memory_of(codes2, STAGES), memory_of(scales, STAGES), memory_of(x, STAGES * 2),
        barriers(STAGES),
    )
    for i in gl.static_range(STAGES - 1):
        send_weights(sources, ring, i, first + i, row, first + i < end)
    if PDL:
        gdc_wait()
    for i in gl.static_range(STAGES - 1):
        send_tokens(x, ring, i, first + i, token, first + i < end)
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [shape.warps, 1], [16, BLOCK_M, 16])
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, mma)
    for step in range(first, end):
        stage = step - first
        slot = stage % STAGES
        mbarrier.wait(ring.ready.index(slot), (stage // STAGES) & 1)
        acc = multiply_tile(acc, ring, slot, BLOCK_N, 0, layout, mma)
        ahead = step + STAGES - 1
        send_weights(sources, ring, (ahead - first) % STAGES, ahead, row, ahead < end)
        send_tokens(x, ring, (ahead - first) % STAGES, ahead, token, ahead < end)
    acc, last = whole_sums(acc, ring.ready, splits, tile, split, shape.split_k, STAGES)
    if last:
        if BLOCK_M >= 256:  # all that is loaded for a whole tile does not fit the registers
            halves = column_halves(acc)
            parts = column_halves(halves[0]) + column_halves(halves[1])
        else:
            parts = (acc,)
        for i in gl.static_range(4 if BLOCK_M >= 256 else 1):
            _store(parts[i], terms, y, row, token + i * 64, m, n, shape.warps)
