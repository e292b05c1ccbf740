# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products with the experts that each token chose.

Algorithm: a counting sort of (token, expert) pairs by expert, then the products of `matmul/kernel.py` for each expert.
Tile:
    few tokens    task (pair, 16 rows)      a product of one token with its expert
    many          pairs | expert 0 | expert 1   | ...    task (expert, 16 rows): tiles of 16, 8, the rest
Bound: bytes of each expert's weights, read once: 475 GOPS for 512 tokens through 128 experts, 768 x 2048 in Q4_K
    (docs/log.md, "An expert's weights read once for each token is a prompt through memory many times").
Tried: docs/log.md: "An expert's weights read once for each token is a prompt through memory many times".
Twin: `octavo.backends.reference.ops.mul_mat_id`

With many tokens: `sort_pairs`, rows of x in that order, their codes, products, and rows of y back in order.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul import quantize_kernel as quantize
from octavo.backends.cpu.matmul.amx_kernel import PRODUCT as TILE_PRODUCT
from octavo.backends.cpu.matmul.amx_kernel import TOKENS_BF16
from octavo.backends.cpu.matmul.tasks import PRODUCT
from octavo.backends.cpu.matmul.tile_sweep import N
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import call, i32_pointer, i64_pointer, stack

MUL_MAT_ID = record("kernel product", "ids sharing", "expert_bytes tiles")
"""kernel        the product for one token
product       its record, for the first row of x, the first row of y and expert 0
ids           int32, the expert of each pair of a token and an expert
sharing       pairs that share a row of x
expert_bytes  bytes of an expert's weights
tiles         tiles of 16 rows of them
"""


@kernels(MUL_MAT_ID)
def mul_mat_id_kernel() -> Any:
    """Task i makes 16 rows of y for pair i // tiles."""
    copy_product, product_bytes = PRODUCT.copy, PRODUCT.nbytes

    def mul_mat_id(a, task):
        pair = task // a.tiles
        memory = stack(product_bytes)
        product = copy_product(memory, a.product)
        product.weights += i32_pointer(a.ids)[pair] * a.expert_bytes
        product.x += pair // a.sharing * product.x_stride
        product.y += pair * product.y_stride
        call(a.kernel, memory, task % a.tiles)

    return mul_mat_id


SORT_PAIRS = record("ids pairs experts sharing", "starts sources places")
"""ids      int32 [pairs], the expert of each; `sharing` pairs have one row of x
starts   int32 [experts + 1], made: where an expert's pairs begin
sources  int32 [pairs], made: the rows of x in the order of experts
places   int32 [pairs], made: where each pair went
"""


@kernels(SORT_PAIRS)
def sort_pairs_kernel() -> Any:
    """One task sorts all pairs by expert."""

    def sort_pairs(a, task):
        ids, pairs, experts, sharing = i32_pointer(a.ids), a.pairs, a.experts, a.sharing
        starts, sources, places = i32_pointer(a.starts), i32_pointer(a.sources), i32_pointer(a.places)
        for expert in range(experts + 1):
            starts[expert] = 0
        for pair in range(pairs):
            starts[ids[pair] + 1] += 1
        for expert in range(experts):
            starts[expert + 1] += starts[expert]
        for pair in range(pairs):
            place = starts[ids[pair]]
            starts[ids[pair]] = place + 1
            sources[place] = pair // sharing
            places[pair] = place
        for expert in range(experts, 0, -1):
            starts[expert] = starts[expert - 1]
        starts[0] = 0

    return sort_pairs


QUANTIZE_SORTED = record("kernel quantize", "starts", "x_stride codes_stride chunks")
"""kernel        the quantizing kernel
quantize      its record, for the first row of x
starts        as `SORT_PAIRS` has it
x_stride      bytes of a row of x
codes_stride  bytes of a row's codes
chunks        pieces of a row
"""


@kernels(QUANTIZE_SORTED)
def quantize_sorted_kernel(tile: int) -> Any:
    """Task i quantizes chunk i % chunks of all rows of expert i // chunks, in tiles of their own."""
    copy_quantize, quantize_bytes, half = quantize.QUANTIZE.copy, quantize.QUANTIZE.nbytes, quantize.half_of(tile)

    def quantize_sorted(a, task):
        chunks, starts = a.chunks, i32_pointer(a.starts)
        expert = task // chunks
        first, count = starts[expert], starts[expert + 1] - starts[expert]
        memory = stack(quantize_bytes)
        part = copy_quantize(memory, a.quantize)
        part.x += first * a.x_stride
        part.codes += first * a.codes_stride
        part.tokens = count
        tiles, rest = count // tile, count % tile
        for i in range(tiles + (rest > 0) + (rest > half > 0)):
            call(a.kernel, memory, i * chunks + task % chunks)

    return quantize_sorted


MUL_MAT_SORTED = record("kernels product", "starts", "expert_bytes tiles")
"""kernels       int64, the product kernels for whole tiles of tokens, and for what is left of these: 1, 2, ... tokens
product       their record, for the first row of x, the first row of y and expert 0
starts        as `SORT_PAIRS` has it
expert_bytes  bytes of an expert's weights
tiles         tiles of 16 rows of them
"""


@kernels(MUL_MAT_SORTED)
def mul_mat_sorted_kernel(sizes: tuple[int, ...]) -> Any:
    """Task i makes 16 rows of y for all rows of x of expert i // tiles.

    The products for whole tiles of each of `sizes`, and for what is left, are a chain of tails (see `product`).
    """
    kinds, largest = len(sizes), sizes[0]
    product_at, copy_product, product_bytes = PRODUCT.at, PRODUCT.copy, PRODUCT.nbytes
    memory_bytes = product_bytes * (kinds + 1)

    def mul_mat_sorted(a, task):
        starts, kernels = i32_pointer(a.starts), i64_pointer(a.kernels)
        expert = task // a.tiles
        first, stop = starts[expert], starts[expert + 1]
        memory = stack(memory_bytes)
        n, kernel, here = largest, 0, memory
        previous = product_at(memory)
        for i in range(kinds + 1):
            left, place = stop - first, i
            if i == kinds:
                n, place = max(left, 1), kinds - 1 + left
            count = left // n
            if count > 0:
                product = copy_product(here, a.product)
                product.weights += expert * a.expert_bytes
                product.x += first * product.x_stride
                product.y += first * product.y_stride
                product.tiles = count
                if kernel == 0:
                    kernel = kernels[place]
                else:
                    previous.tail, previous.tail_arguments = kernels[place], here
                previous = product
                here += product_bytes
                first += count * n
            n //= 2
        if kernel != 0:
            call(kernel, memory, task % a.tiles)

    return mul_mat_sorted


TOKENS_SORTED = record("kernel tokens", "starts", "x_stride of_tile chunks")
"""kernel    `tokens_kernel` of `amx_kernel`
tokens    its record, for the first row of x
starts    as `SORT_PAIRS` has it
x_stride  bytes of a row of x
of_tile   bytes of a tile; those of an expert begin with tile starts[expert] // 16 + expert
chunks    pieces of a tile
"""


@kernels(TOKENS_SORTED)
def tokens_sorted_kernel() -> Any:
    """Task i rounds chunk i % chunks of all rows of expert i // chunks to bfloat16, in tiles of their own."""
    copy_tokens, tokens_bytes, n = TOKENS_BF16.copy, TOKENS_BF16.nbytes, N

    def tokens_sorted(a, task):
        chunks, starts = a.chunks, i32_pointer(a.starts)
        expert = task // chunks
        first, count = starts[expert], starts[expert + 1] - starts[expert]
        memory = stack(tokens_bytes)
        part = copy_tokens(memory, a.tokens)
        part.x += first * a.x_stride
        part.out += (first // n + expert) * a.of_tile
        part.tokens = count
        for i in range((count + n - 1) // n):
            call(a.kernel, memory, i * chunks + task % chunks)

    return tokens_sorted


TILE_SORTED = record("kernel product", "starts", "expert_bytes of_tile tasks")
"""kernel        a kernel of `amx_kernel`
product       its record, for the first tile of x, the first row of y and expert 0
starts        as `SORT_PAIRS` has it
expert_bytes  bytes of an expert's weights
of_tile       as `TOKENS_SORTED` has it
tasks         of an expert
"""


@kernels(TILE_SORTED)
def tile_sorted_kernel() -> Any:
    """Task i makes some rows of y for all rows of x of expert i // tasks."""
    copy_product, product_bytes, n = TILE_PRODUCT.copy, TILE_PRODUCT.nbytes, N

    def tile_sorted(a, task):
        starts, expert = i32_pointer(a.starts), task // a.tasks
        first, count = starts[expert], starts[expert + 1] - starts[expert]
        if count > 0:
            memory = stack(product_bytes)
            product = copy_product(memory, a.product)
            product.weights += expert * a.expert_bytes
            product.x += (first // n + expert) * a.of_tile
            product.y += first * product.y_stride
            product.tokens = count
            call(a.kernel, memory, task % a.tasks)

    return tile_sorted
