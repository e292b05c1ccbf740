# mypy: ignore-errors
"""All-reduce: the sum of a value over all ranks, and of terms that every rank already has, such as the residual.

Algorithm: one-shot all-reduce with NCCL's LL protocol (low latency): each rank writes its values into the memory of all
    others, in words of 64 bits, of which 32 are the value and 32 the number of the call. A rank polls its own memory
    until every word has that number. A word is written whole, so there is neither a fence nor a flag beside the data.
Tile:
    program p     values p B .. (p + 1) B of x
    own words     x -> | value, call | -> inbox [call % 2, own rank] of each other rank, over NVLink
    inbox [call % 2]    rank 0 | rank 1 | ...    polled until all are of this call, added in the order of ranks, + terms
Bound: latency, one way over NVLink; with many values bytes, 8 for each value and other rank.
    8 to 64 KB take 2.3 to 2.7 us in a captured graph of two H200s, 256 KB 3.8
    (bench/results/all-reduce-sm_90-2026-11-30.json).
Tried: nothing else.
Twin: `octavo.backends.collectives.collective_call`

All ranks add in the same order, so they get the same sums, bit for bit.

A call writes into the half of the inbox that the previous call did not use. A rank that begins call n + 2 has read all
words of call n + 1, and the others sent those after their call n had ended: nobody reads the half of call n any more.
Each program counts its own calls, and always has the same places, so this holds whatever the sizes of the calls are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import begin


@triton.jit
def all_reduce_kernel(
    x, terms, out, inboxes, calls, size, most, RANK: tl.constexpr, RANKS: tl.constexpr, B: tl.constexpr,
    PDL: tl.constexpr,
):
    """out [size] = the sum of all ranks' x [size], and of terms [size], of which there may be none; all float32.

    inboxes  the address of each rank's inbox, int64 [2, RANKS, most]: Triton takes no tensor of another rank's memory
    calls    int32 [programs], of this rank: how many calls each program has finished; all ranks have the same number
    most     the largest size
    """
    begin(PDL)
    program = tl.program_id(0)
    at = program * B + tl.arange(0, B)
    inside = at < size
    call = tl.load(calls + program) + 1
    half = (call & 1).to(tl.int64) * RANKS * most
    own = tl.load(x + at, mask=inside, other=0.0)  # [B]
    word = (call.to(tl.int64) << 32) | (own.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            inbox = inboxes[rank].to(tl.pointer_type(tl.int64))
            tl.store(inbox + half + RANK * most + at, word, mask=inside, cache_modifier=".wt")
    total = tl.zeros([B], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            total += own
        else:
            source = inboxes[RANK].to(tl.pointer_type(tl.int64)) + half + rank * most + at
            ready = call.to(tl.int64) << 32
            found = tl.load(source, mask=inside, other=ready, volatile=True)  # [B]; masked words count as arrived
            while tl.min((found >> 32 == call).to(tl.int32), axis=0) == 0:
                found = tl.load(source, mask=inside, other=ready, volatile=True)
            total += found.to(tl.int32).to(tl.float32, bitcast=True)
    for i in tl.static_range(len(terms)):
        total += tl.load(terms[i] + at, mask=inside, other=0.0)
    tl.store(out + at, total, mask=inside)
    tl.store(calls + program, call)
