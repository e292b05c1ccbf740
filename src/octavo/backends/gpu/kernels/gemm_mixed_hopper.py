"""y [M, N] of float16 x [M, K] and quantized weights for compute capability 9.0, in Gluon: codes become float16 in the
registers that the matrix units read them from, while these still multiply the 32 values before.

As in `gemm_int8_hopper`, y^T = W x^T and a ring of tiles is filled ahead. A lane unpacks four neighbouring codes at a
time, but holds values 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 for the matrix units. The order of K is free as long as both
factors have the same, so codes stay where they are unpacked and `reorder_kernel` moves the values of x. `scales_kernel`
makes float16 scales of groups beforehand, from whatever levels a layout has.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.arguments import SplitK
from octavo.backends.gpu.kernels.codes import scales
from octavo.backends.gpu.kernels.gemm_w4a8 import twice
from octavo.backends.gpu.kernels.gluon_names import copy_tile
from octavo.backends.gpu.kernels.hopper_tiles import barriers, column_halves, rows_and_tokens, whole_sums, work_of

TILE = gl.constexpr(128)  # values of K of a tile: its low codes, then its high ones


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
def scales_kernel(
    scale, minimum, small, rest, out, out_minimum, n,
    kp: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr, HAS_MIN: tl.constexpr,
    MIN_BITS: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out int32 [kp / G, n]: the scale of each group of each row as float16, twice; out_minimum minima, negative."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    HALF: tl.constexpr = 64 // G  # groups of half a tile
    at = tl.program_id(0) * BN + tl.arange(0, BN)[:, None]
    row = tl.minimum(at, n - 1).to(tl.int64)
    pair = tl.program_id(1) * BG + tl.arange(0, BG)[None, :]
    inside = pair < kp // (2 * G)
    low, high, low_min, high_min = scales(
        scale, minimum, small, rest, row, pair * (G // 16), kp, inside, G, S, KIND, HAS_MIN, MIN_BITS
    )
    place = (pair // HALF * (2 * HALF) + pair % HALF).to(tl.int64) * n + at
    written = inside & (at < n)
    tl.store(out + place, twice(low.to(tl.float16)), mask=written)
    tl.store(out + place + HALF * n, twice(high.to(tl.float16)), mask=written)
    if HAS_MIN:
        tl.store(out_minimum + place, twice(-low_min.to(tl.float16)), mask=written)
        tl.store(out_minimum + place + HALF * n, twice(-high_min.to(tl.float16)), mask=written)


@gluon.constexpr_function
def unpack_ptx(bits, signed, has_min, half):
    """PTX that makes float16 of words of four codes, bytes 0 and 2 in one register and 1 and 3 in the next.

    Words of fewer than 8 bits hold low and high codes, which gives four registers; of 6 bits the upper two are those
    for this half of a half tile. Ten bits below 1024 in float16 are a number added to it: taking away 1024, and what
    made a signed code unsigned, is exact, and so only the product with the scale is rounded.
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
            lines.append("sub.f16x2 s, s, z;")
            end = f"fma.rn.f16x2 ${2 * i + odd}, s, {scale[i]}, {minimum[i]};"
            lines.append(end if has_min else f"mul.f16x2 ${2 * i + odd}, s, {scale[i]};")
    inputs = words + 4 * values * (2 if has_min else 1)
    return "{ " + " ".join(lines) + " }", ",".join(["=r"] * first + ["r"] * inputs)


@gluon.jit
def _send_for(
    codes, codes2, x, left, left2, right, ready, stage, step, row, token, there, BITS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Have a tile's codes and values copied to a stage of the ring, if there is such a tile."""
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
    """Unpacked float16 [rows, 32] as matrix units take them, each where it is: four of a lane become two and two."""
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
def _halves(
    codes, codes2, scales_of, minima_of, half: gl.constexpr, BITS: gl.constexpr, G: gl.constexpr,
    SIGNED: gl.constexpr, HAS_MIN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Float16 [rows, 32] twice, of a half of a tile's low codes and of that of its high ones."""
    PTX: gl.constexpr = unpack_ptx(BITS, SIGNED, HAS_MIN, half)
    LOW: gl.constexpr = half * (32 // G)
    HIGH: gl.constexpr = 64 // G + half * (32 // G)
    low_scales = (_of_codes(scales_of, LOW, G, layout),)
    high_scales = (_of_codes(scales_of, HIGH, G, layout),)
    low_minima = ()
    high_minima = ()
    if HAS_MIN:
        low_minima = (_of_codes(minima_of, LOW, G, layout),)
        high_minima = (_of_codes(minima_of, HIGH, G, layout),)
    words = (codes.slice(half * 32, 32, 1).load(layout),)
    if BITS == 8:
        upper = (codes.slice(64 + half * 32, 32, 1).load(layout),)
        low = _unpacked(words + low_scales + low_minima, False, PTX)
        high = _unpacked(upper + high_scales + high_minima, False, PTX)
    else:
        if BITS == 6:
            words = words + (codes2.load(layout),)  # noqa: RUF005
        low, high = _unpacked(words + low_scales + high_scales + low_minima + high_minima, True, PTX)
    return low, high


@gluon.jit
def _store(acc, term0, term1, y, row, token, m, n, y_stride, stride0, stride1, TERMS: gl.constexpr,
           num_warps: gl.constexpr):  # fmt: skip
    """y f32 [tokens, rows] = acc [rows, tokens] + terms."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    BELOW: gl.constexpr = 2 if R >= 64 else 1
    out: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [BELOW, num_warps // BELOW], [0, 1])
    value = gl.convert_layout(acc, out)
    rows, tokens, inside = rows_and_tokens(row, token, m, n, R, C, 1, out)
    if TERMS > 0:
        value += gl.load(term0 + tokens.to(gl.int64) * stride0 + rows, mask=inside, other=0.0)
    if TERMS > 1:
        value += gl.load(term1 + tokens.to(gl.int64) * stride1 + rows, mask=inside, other=0.0)
    gl.store(y + tokens.to(gl.int64) * y_stride + rows, value, mask=inside)


@gluon.jit
def mixed_hopper_kernel(
    x, codes, codes2, scale, minimum, term0, term1, y, shares, finished, m, n, k, y_stride, stride0, stride1,
    BITS: gl.constexpr, G: gl.constexpr, SIGNED: gl.constexpr, HAS_MIN: gl.constexpr, TERMS: gl.constexpr,
    GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A program a tile of rows of W by tokens, as the blocks of the descriptors say, and a share of K.

    x is float16 [M, K] as `reorder_kernel` leaves it, codes the plane of 4 or 8 bits and codes2 that of 2; scale and
    minimum are those of `scales_kernel`. y is float32.
    """
    BM: gl.constexpr = x.block_type.shape[0]
    BN: gl.constexpr = codes.block_type.shape[0]
    tile, split, row, token, first, end = work_of(gl.program_id(0), m, n, k, BM, BN, TILE, GROUP, SPLITS)
    left = gl.allocate_shared_memory(gl.int8, [STAGES, BN, codes.block_type.shape[1]], codes.layout)
    left2 = left
    if BITS == 6:
        left2 = gl.allocate_shared_memory(gl.int8, [STAGES, BN, codes2.block_type.shape[1]], codes2.layout)
    right = gl.allocate_shared_memory(gl.float16, [STAGES * 2, BM, TILE // 2], x.layout)
    ready = barriers(STAGES)
    for i in gl.static_range(STAGES - 1):
        _send_for(codes, codes2, x, left, left2, right, ready, i, first + i, row, token, first + i < end, BITS, STAGES)
    units: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BM, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, units, 2)
    bytes_: gl.constexpr = gl.DotOperandLayout(0, units, 4)
    acc = gl.zeros([BN, BM], gl.float32, units)
    down = gl.arange(0, BN, gl.SliceLayout(1, bytes_))
    there = down < n - row
    steps = k // TILE
    scales_now = _groups(scale + row + down, there, first, steps, n, G)
    minima_now = scales_now
    if HAS_MIN:
        minima_now = _groups(minimum + row + down, there, first, steps, n, G)
    for step in range(first, end):
        stage = step - first
        slot = stage % STAGES
        of_scales, of_minima = scales_now, minima_now
        scales_now = _groups(scale + row + down, there, step + 1, steps, n, G)
        if HAS_MIN:
            minima_now = _groups(minimum + row + down, there, step + 1, steps, n, G)
        mbarrier.wait(ready.index(slot), (stage // STAGES) & 1)
        for half in gl.static_range(2):
            low, high = _halves(
                left.index(slot), left2.index(slot), of_scales, of_minima, half, BITS, G, SIGNED, HAS_MIN, bytes_
            )
            tokens = right.index(slot * 2).slice(half * 32, 32, 1).permute((1, 0))
            acc = warpgroup_mma(_factor(low, factor), tokens, acc, is_async=True)
            tokens = right.index(slot * 2 + 1).slice(half * 32, 32, 1).permute((1, 0))
            acc = warpgroup_mma(_factor(high, factor), tokens, acc, is_async=True)
            acc = warpgroup_mma_wait(2, [acc])
        ahead = step + STAGES - 1
        _send_for(
            codes, codes2, x, left, left2, right, ready, ahead - first, ahead, row, token, ahead < end, BITS, STAGES
        )
    acc, last = whole_sums(acc, ready, SplitK(shares, finished), tile, split, SPLITS, STAGES)
    if last:
        if BM >= 256:  # all that is loaded for a whole tile does not fit the registers
            halves = column_halves(acc)
            parts = column_halves(halves[0]) + column_halves(halves[1])
        else:
            parts = (acc,)
        for i in gl.static_range(4 if BM >= 256 else 1):
            _store(parts[i], term0, term1, y, row, token + i * 64, m, n, y_stride, stride0, stride1, TERMS, num_warps)
