"""GEMM of mixed inputs for compute capability 9.0, in Gluon: y [M, N] of float16 x [M, K] and quantized weights.

Codes become float16 in the registers that tensor cores read them from, while these still multiply the 32 values
before. As in `gemm_int8_hopper`, y^T = W x^T and a ring of tiles is filled ahead. A lane unpacks four neighbouring
codes at a time, but holds values 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 for `wgmma`. The order of K is free as long as
both factors have the same. So codes stay where they are unpacked and `reorder_kernel` moves the values of x.
`scales_kernel` makes float16 scales of groups beforehand, from whatever levels a layout has. Zero points are taken off
codes before they are scaled, which is exact and costs what a constant offset does.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.decode import scales_of
from octavo.backends.gpu.kernels.gemm_w4a8 import twice
from octavo.backends.gpu.kernels.gluon_names import copy_tile
from octavo.backends.gpu.kernels.hopper_tiles import barriers, column_halves, rows_and_tokens, whole_sums, work_of
from octavo.backends.gpu.kernels.loads import load_or_zero

TILE = gl.constexpr(128)  # values of K of a tile: its low codes, then its high ones
GROUP_M = gl.constexpr(8)  # rows of tiles that share what they read in the L2


@triton.jit
def reorder_kernel(x, out, size, B: tl.constexpr, PDL: tl.constexpr):
    """out float16 [size] = x, of each 16 values 4t + b + 2c at place 8b + 2t + c (b and c 0 or 1)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.reshape(tl.load(x + at, mask=at < size, other=0.0), (B // 16, 4, 2, 2))
    value = tl.reshape(tl.permute(value, (0, 3, 1, 2)), (B,))
    tl.store(out + at, value, mask=at < size)


@triton.jit
def reorder_codes_kernel(codes, d, out, size, tp, kp: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """`reorder_kernel` of q8_1: codes int8 [tokens, kp] times d [kp / 32, tp]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < size
    code = tl.load(codes + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(d + at % kp // 32 * tp + at // kp, mask=inside, other=0.0)
    value = tl.reshape((code * scale).to(tl.float16), (B // 16, 4, 2, 2))
    tl.store(out + at, tl.reshape(tl.permute(value, (0, 3, 1, 2)), (B,)), mask=inside)


@triton.jit
def scales_kernel(w, out, n, BLOCK_N: tl.constexpr, PAIRS: tl.constexpr, PDL: tl.constexpr):
    """out: the `F16Scales` of w; minima are negative, zero points have 1024 added. A program has PAIRS of groups."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    L: tl.constexpr = w.layout
    HALF: tl.constexpr = 64 // L.group  # groups of half a tile
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    row = tl.minimum(at, n - 1).to(tl.int64)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)[None, :]
    inside = pair < L.kp // (2 * L.group)
    low, high, low_min, high_min = scales_of(w, row, pair * (L.group // 16), inside)  # [BLOCK_N, PAIRS]
    place = (pair // HALF * (2 * HALF) + pair % HALF).to(tl.int64) * n + at
    written = inside & (at < n)
    tl.store(out.scale + place, twice(low.to(tl.float16)), mask=written)
    tl.store(out.scale + place + HALF * n, twice(high.to(tl.float16)), mask=written)
    if L.has_min:
        low_term, high_term = -low_min, -high_min
        if L.has_zero:
            both = load_or_zero(w.minimum + row * (L.kp // (2 * L.group)) + pair, inside).to(tl.int32)
            low_term, high_term = 1024.0 + (both & 0xFF), 1024.0 + ((both >> 8) & 0xFF)
        tl.store(out.minimum + place, twice(low_term.to(tl.float16)), mask=written)
        tl.store(out.minimum + place + HALF * n, twice(high_term.to(tl.float16)), mask=written)


@gluon.constexpr_function
def unpack_ptx(bits, signed, has_min, has_zero, half):
    """PTX that makes float16 of words of four codes, bytes 0 and 2 in one register and 1 and 3 in the next.

    Words of fewer than 8 bits hold low and high codes, which gives four registers; of 6 bits the upper two are those
    for this half of a half tile. Ten bits below 1024 in float16 are a number added to it: taking away 1024, and what
    made a signed code unsigned or the zero point, is exact, and so only the product with the scale is rounded.
    """
    zero = 0x6400 + (1 << (bits - 1) if signed else 0)
    words, values = (2 if bits == 6 else 1), (2 if bits < 8 else 1)
    first = 2 * values
    scale = [f"${first + words + 4 * i}" for i in range(values)]
    minimum = [f"${first + words + 4 * (values + i)}" for i in range(values)]
    lines = [".reg .b32 w, h, s, z, k;", f"mov.b32 z, {hex(zero << 16 | zero)};", "mov.b32 k, 0x64006400;"]
    if bits == 8:
        lines.append(f"xor.b32 w, ${first}, {'0x80808080' if signed else '0'};")
    for i in range(values):
        for odd in range(2):
            if bits == 8:
                lines.append(f"prmt.b32 s, w, k, {'0x5351' if odd else '0x5250'};")
            else:
                lines.append(f"shr.u32 w, ${first}, {4 * i + 8 * odd};")
                lines.append("lop3.b32 s, w, 0x000F000F, z, 0x6A;")
            if bits == 6:
                right = 2 * i + 8 * odd + 4 * half - 4
                lines.append(f"{'shr.u32' if right >= 0 else 'shl.b32'} h, ${first + 1}, {abs(right)};")
                lines.append("lop3.b32 s, h, 0x00300030, s, 0x6A;")
            lines.append(f"sub.f16x2 s, s, {minimum[i] if has_zero else 'z'};")
            end = f"fma.rn.f16x2 ${2 * i + odd}, s, {scale[i]}, {minimum[i]};"
            lines.append(end if has_min and not has_zero else f"mul.f16x2 ${2 * i + odd}, s, {scale[i]};")
    inputs = words + 4 * values * (2 if has_min else 1)
    return "{ " + " ".join(lines) + " }", ",".join(["=r"] * first + ["r"] * inputs)


@gluon.jit
def _send_for(sources, ring, stage, step, row, token, there, BITS: gl.constexpr, STAGES: gl.constexpr):
    """Have a tile's codes and values copied to a stage of the ring, if there is such a tile."""
    codes, codes2, x = sources
    left, left2, right, ready = ring
    slot = stage % STAGES
    bar = ready.index(slot)
    TOTAL: gl.constexpr = codes.block_type.nbytes + 2 * x.block_type.nbytes
    mbarrier.expect(bar, TOTAL + codes2.block_type.nbytes if BITS == 6 else TOTAL, pred=there)
    copy_tile(codes, [row, step * codes.block_type.shape[1]], bar, left.index(slot), pred=there)
    if BITS == 6:
        at = step * codes2.block_type.shape[1]
        copy_tile(codes2, [row, at], bar, left2.index(slot), pred=there)
    for i in gl.static_range(2):
        at = step * TILE + i * (TILE // 2)
        copy_tile(x, [token, at], bar, right.index(slot * 2 + i), pred=there)


@gluon.jit
def _groups(pointer, there, tile, tiles, n, G: gl.constexpr):
    """What `scales_kernel` has of a tile's groups, rows `pointer` and on: 128 / G values for each row."""
    COUNT: gl.constexpr = TILE // G
    found = ()
    for i in gl.static_range(COUNT):
        group = (tile * COUNT + i).to(gl.int64)
        found = found + (gl.load(pointer + group * n, mask=there & (tile < tiles), other=0),)  # noqa: RUF005
    return found


@gluon.jit
def _of_codes(groups, first: gl.constexpr, G: gl.constexpr, layout: gl.constexpr):
    """For each of 32 codes that of its group, `first` or the next; int32 [rows, 32]."""
    R: gl.constexpr = groups[0].shape[0]
    if G == 16:
        place = gl.arange(0, 32, gl.SliceLayout(0, layout))[None, :]
        value = gl.where(place < 16, groups[first].expand_dims(1), groups[first + 1].expand_dims(1))
    else:
        value = groups[first].expand_dims(1)
    return gl.broadcast(value, gl.zeros([R, 32], gl.int32, layout))[0]


@gluon.jit
def _factor(value, layout: gl.constexpr):
    """Unpacked float16 [rows, 32] as `wgmma` takes them, each where it is: four of a lane become two and two."""
    R: gl.constexpr = value.shape[0]
    value = value.reshape([R, 2, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([R, 32])
    return gl.convert_layout(value, layout, assert_trivial=True)


@gluon.jit
def _unpacked(inputs, TWO: gl.constexpr, PTX: gl.constexpr):
    """Float16 of codes: of 8 bits one tensor, of fewer the low and high ones; `inputs` as `unpack_ptx` wants them."""
    if TWO:
        out = gl.inline_asm_elementwise(PTX[0], PTX[1], inputs, dtype=(gl.float16, gl.float16), is_pure=True, pack=4)
    else:
        out = gl.inline_asm_elementwise(PTX[0], PTX[1], inputs, dtype=gl.float16, is_pure=True, pack=4)
    return out


@gluon.jit
def _halves(codes, codes2, scales, minima, half: gl.constexpr, LAYOUT: gl.constexpr, layout: gl.constexpr):
    """Float16 [BLOCK_N, 32] twice, of a half of a tile's low codes and of that of its high ones."""
    G: gl.constexpr = LAYOUT.group
    PTX: gl.constexpr = unpack_ptx(LAYOUT.bits, LAYOUT.signed, LAYOUT.has_min, LAYOUT.has_zero, half)
    LOW: gl.constexpr = half * (32 // G)
    HIGH: gl.constexpr = 64 // G + half * (32 // G)
    low_scales = (_of_codes(scales, LOW, G, layout),)
    high_scales = (_of_codes(scales, HIGH, G, layout),)
    low_minima = ()
    high_minima = ()
    if LAYOUT.has_min:
        low_minima = (_of_codes(minima, LOW, G, layout),)
        high_minima = (_of_codes(minima, HIGH, G, layout),)
    words = (codes.slice(half * 32, 32, 1).load(layout),)  # int8 [BLOCK_N, 32]
    if LAYOUT.bits == 8:
        upper = (codes.slice(64 + half * 32, 32, 1).load(layout),)
        low = _unpacked(words + low_scales + low_minima, False, PTX)
        high = _unpacked(upper + high_scales + high_minima, False, PTX)
    else:
        if LAYOUT.bits == 6:
            words = words + (codes2.load(layout),)  # noqa: RUF005
        low, high = _unpacked(words + low_scales + high_scales + low_minima + high_minima, True, PTX)
    return low, high


@gluon.jit
def _store(acc, terms, y, row, token, m, n, WARPS: gl.constexpr):
    """y f32 [tokens, rows] = acc [rows, tokens] + terms."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    BELOW: gl.constexpr = 2 if R >= 64 else 1
    out: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [BELOW, WARPS // BELOW], [0, 1])
    value = gl.convert_layout(acc, out)
    rows, tokens, inside = rows_and_tokens(row, token, m, n, R, C, 1, out)
    for i in gl.static_range(len(terms)):
        value += gl.load(terms[i].data + tokens.to(gl.int64) * terms[i].stride + rows, mask=inside, other=0.0)
    gl.store(y.data + tokens.to(gl.int64) * y.stride + rows, value, mask=inside)


@gluon.jit
def mixed_hopper_kernel(x, codes, codes2, groups, terms, y, splits, size, layout: gl.constexpr, shape: gl.constexpr):
    """A program a tile of rows of W by tokens and a part of K; `size` is a `Size`.

    x, codes and codes2 are descriptors: of float16 [M, K] as `reorder_kernel` leaves it, of the plane of 4 or 8 bits,
    and of that of 2 bits or None. `groups` are `F16Scales`; y is float32.
    """
    m, n, k = size.m, size.n, size.k
    BLOCK_M: gl.constexpr = shape.block_m
    BLOCK_N: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    BITS: gl.constexpr = layout.bits
    tile, split, row, token, first, end = work_of(
        gl.program_id(0), m, n, k, BLOCK_M, BLOCK_N, TILE, GROUP_M, shape.split_k
    )
    left = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, codes.block_type.shape[1]], codes.layout)
    left2 = left
    if BITS == 6:
        left2 = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, codes2.block_type.shape[1]], codes2.layout)
    right = gl.allocate_shared_memory(gl.float16, [STAGES * 2, BLOCK_M, TILE // 2], x.layout)
    ready = barriers(STAGES)
    sources, ring = (codes, codes2, x), (left, left2, right, ready)
    for i in gl.static_range(STAGES - 1):
        _send_for(sources, ring, i, first + i, row, token, first + i < end, BITS, STAGES)
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [shape.warps, 1], [16, BLOCK_M, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, mma)
    down = gl.arange(0, BLOCK_N, gl.SliceLayout(1, bytes_))
    there = down < n - row
    steps = k // TILE
    scales_now = _groups(groups.scale + row + down, there, first, steps, n, layout.group)
    minima_now = scales_now
    if layout.has_min:
        minima_now = _groups(groups.minimum + row + down, there, first, steps, n, layout.group)
    for step in range(first, end):
        stage = step - first
        slot = stage % STAGES
        scales, minima = scales_now, minima_now
        scales_now = _groups(groups.scale + row + down, there, step + 1, steps, n, layout.group)
        if layout.has_min:
            minima_now = _groups(groups.minimum + row + down, there, step + 1, steps, n, layout.group)
        mbarrier.wait(ready.index(slot), (stage // STAGES) & 1)
        for half in gl.static_range(2):
            low, high = _halves(left.index(slot), left2.index(slot), scales, minima, half, layout, bytes_)
            # W [BLOCK_N, 32] @ x^T [32, BLOCK_M]
            tokens = right.index(slot * 2).slice(half * 32, 32, 1).permute((1, 0))
            acc = warpgroup_mma(_factor(low, factor), tokens, acc, is_async=True)
            tokens = right.index(slot * 2 + 1).slice(half * 32, 32, 1).permute((1, 0))
            acc = warpgroup_mma(_factor(high, factor), tokens, acc, is_async=True)
            acc = warpgroup_mma_wait(2, [acc])
        ahead = step + STAGES - 1
        _send_for(sources, ring, ahead - first, ahead, row, token, ahead < end, BITS, STAGES)
    acc, last = whole_sums(acc, ready, splits, tile, split, shape.split_k, STAGES)
    if last:
        if BLOCK_M >= 256:  # all that is loaded for a whole tile does not fit the registers
            halves = column_halves(acc)
            parts = column_halves(halves[0]) + column_halves(halves[1])
        else:
            parts = (acc,)
        for i in gl.static_range(4 if BLOCK_M >= 256 else 1):
            _store(parts[i], terms, y, row, token + i * 64, m, n, shape.warps)
