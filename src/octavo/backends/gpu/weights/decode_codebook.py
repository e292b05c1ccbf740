# mypy: ignore-errors
"""Points of a grid looked up by number and made signed bytes; `layout` says how numbers and marks lie.

`load_chunk` and `codes_of_chunk` are for kernels whose threads hold a chunk each, so that nothing moves between them.
`codes_of_words` is for those that Triton distributes words of codes for.

A table of points lies in memory, where the L1 has it soon; or `in_shared_memory`, whose banks serve any numbers at
once. It may lie there several times, one copy beside the other, so that neighbouring threads ask different banks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.weights.loads import load_or_zero, two


@triton.constexpr_function
def _two_words(table):
    """Eight signed bytes as two int32 words."""
    words = [sum((int(table[4 * half + i]) & 255) << (8 * i) for i in range(4)) for half in range(2)]
    return tuple(word - (1 << 32) if word >> 31 else word for word in words)


@triton.constexpr_function
def _declared(words):
    """PTX for the address of so many words of shared memory."""
    return f"{{ .shared .align 16 .b32 points[{words}]; mov.u32 $0, points; }}"


@triton.jit
def in_shared_memory(points, thread, COUNT: tl.constexpr, COPIES: tl.constexpr, THREADS: tl.constexpr):
    """Where COUNT points lie in shared memory, to which a program's threads, `thread` of them from 0 to THREADS - 1,
    copy them; in PTX only. COPIES, 1 or a multiple of 4, are neighbours: `own_copy`.

    The result is a scalar, since of a tensor each of its layouts would have points of its own.
    """
    WORDS: tl.constexpr = COUNT * COPIES
    DECLARED: tl.constexpr = _declared(WORDS)
    base = tl.inline_asm_elementwise(DECLARED, "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1)
    for i in tl.static_range((WORDS // 4 + THREADS - 1) // THREADS):
        quad = (thread + i * THREADS) % (WORDS // 4)
        if COPIES == 1:
            a, b = two(points, quad * 2, None)
            c, d = two(points, quad * 2 + 1, None)
        else:
            a = tl.load(points + quad * 4 // COPIES)
            b, c, d = a, a, a
        tl.inline_asm_elementwise(
            "st.shared.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;", "=r,r,r,r,r,r", [base + quad * 16, a, b, c, d],
            dtype=tl.int32, is_pure=False, pack=1,
        )
    tl.debug_barrier()
    return base


@triton.jit
def own_copy(base, thread, COPIES: tl.constexpr):
    """Where a thread looks points up that are `in_shared_memory`."""
    return base + thread % COPIES * 4


@triton.jit
def _point(points, number, COPIES: tl.constexpr):
    """The word of a point; with COPIES, `points` are places in shared memory."""
    if COPIES > 0:
        word = tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=r,r", [points + number * (4 * COPIES)], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        word = tl.load(points + number)
    return word


@triton.jit
def _chosen(word, TABLE: tl.constexpr, ASM: tl.constexpr):
    """Four signed bytes of a table of eight, for the lowest four codes of four bits."""
    WORDS: tl.constexpr = _two_words(TABLE)
    if ASM == "ptx":
        low = tl.full(word.shape, WORDS[0], tl.int32)
        high = tl.full(word.shape, WORDS[1], tl.int32)
        out = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, word], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        out = tl.zeros_like(word)
        for i in tl.static_range(4):
            code = word >> (4 * i)
            half = tl.where(code & 4 != 0, WORDS[1], WORDS[0])
            out |= ((half >> ((code & 3) * 8)) & 0xFF) << (8 * i)
    return out


@triton.jit
def _negated(word, ones):
    """Four positive bytes, negated where a byte of `ones` is 1."""
    return (word ^ (ones * 255)) + ones


@triton.jit
def number_of(low, upper, BYTE: tl.constexpr, MORE: tl.constexpr, ASM: tl.constexpr):
    """Number BYTE of four: its low bits in byte BYTE of `low`, what is above them in that of `upper`, below 128."""
    if ASM == "ptx":
        if MORE == 0:
            PICK: tl.constexpr = f"prmt.b32 $0, $1, 0, 0x444{BYTE};"
            number = tl.inline_asm_elementwise(PICK, "=r,r", [low], dtype=tl.int32, is_pure=True, pack=1)
        else:
            PICK: tl.constexpr = "prmt.b32 $0, $1, $2, 0x" + "CDEF"[BYTE] * 2 + "4567"[BYTE] + "0123"[BYTE] + ";"
            number = tl.inline_asm_elementwise(PICK, "=r,r,r", [low, upper], dtype=tl.int32, is_pure=True, pack=1)
    elif MORE == 0:
        number = (low >> (8 * BYTE)) & 255
    else:
        number = ((low >> (8 * BYTE)) & 255) | (((upper >> (8 * BYTE)) & 255) << 8)
    return number


@triton.jit
def upper_of(word, chunk, G: tl.constexpr):
    """The upper bits of a chunk's numbers, for each word of their low bits, from the word that has them."""
    MASK: tl.constexpr = ((1 << G.more) - 1) * 0x01010101
    WORDS: tl.constexpr = G.per_chunk // 4
    bits = word >> (chunk * WORDS % G.sharing * G.more).to(tl.int32)
    return (bits & MASK,) if WORDS == 1 else (bits & MASK, (bits >> G.more) & MASK)


@triton.jit
def load_chunk(w, row, chunk, mask):
    """Words of the numbers and of the marks of a chunk of each row in `row`: (low, upper, marks)."""
    G: tl.constexpr = w.layout.grid
    WORDS: tl.constexpr = G.per_chunk // 4
    CHUNKS: tl.constexpr = w.layout.kp // 32
    at = row * CHUNKS + chunk
    low = (load_or_zero(w.low + at, mask),) if WORDS == 1 else two(w.low, at, mask)
    upper, marks = low, low
    if G.more > 0:
        word = load_or_zero(w.upper + row * (CHUNKS * WORDS // G.sharing) + chunk * WORDS // G.sharing, mask)
        upper = upper_of(word, chunk, G)
    if G.marks:
        marks = (load_or_zero(w.marks + at, mask),)
    return low, upper, marks


@triton.jit
def codes_of_chunk(loaded, points, P: tl.constexpr, LAYOUT: tl.constexpr, COPIES: tl.constexpr, ASM: tl.constexpr):
    """The 16 low (P 0) or high (P 1) codes of what `load_chunk` has, as signed bytes in four words."""
    G: tl.constexpr = LAYOUT.grid
    POINTS: tl.constexpr = G.per_chunk
    low, upper, marks = loaded
    words = ()
    for i in tl.static_range(P, POINTS, 2):
        number = number_of(low[i // 4], upper[i // 4], i % 4, G.more, ASM)
        point = _point(points, number, COPIES)
        if G.table is None:
            words = words + (_negated(point, (marks[0] >> i) & 0x01010101),)  # noqa: RUF005
        else:
            if G.marks:
                point |= (marks[0] << (2 - i) if i < 2 else marks[0] >> (i - 2)) & 0x44444444
            words = words + (_chosen(point, G.table, ASM), _chosen(point >> 16, G.table, ASM))  # noqa: RUF005
    return words


@triton.jit
def codes_of_words(w, row, word, mask, ASM: tl.constexpr):
    """Signed bytes of low and high codes 4 * (word % 16) and on of tile word // 16 of `row`, two words."""
    G: tl.constexpr = w.layout.grid
    CHUNKS: tl.constexpr = w.layout.kp // 32
    pair = word * 4 // G.width  # of points: low and high codes'
    both = load_or_zero(w.low.to(tl.pointer_type(tl.int16)) + row * (CHUNKS * G.per_chunk // 2) + pair, mask)
    low, high = both.to(tl.int32) & 255, (both.to(tl.int32) >> 8) & 255
    if G.more > 0:
        of_four = pair // 2
        at = row * (CHUNKS * G.per_chunk // 4 // G.sharing) + of_four // G.sharing
        bits = load_or_zero(w.upper + at, mask) >> (of_four % G.sharing * G.more + pair % 2 * 16).to(tl.int32)
        low |= (bits & ((1 << G.more) - 1)) << 8
        high |= ((bits >> 8) & ((1 << G.more) - 1)) << 8
    low, high = load_or_zero(w.points + low, mask), load_or_zero(w.points + high, mask)
    first = pair % (G.per_chunk // 2) * 2
    if G.marks:
        marks = load_or_zero(w.marks + row * CHUNKS + word // 4, mask) >> first.to(tl.int32)
    if G.table is None:
        low, high = _negated(low, marks & 0x01010101), _negated(high, (marks >> 1) & 0x01010101)
    else:
        if G.marks:
            low |= (marks << 2) & 0x44444444
            high |= (marks << 1) & 0x44444444
        half = (word % 2 * 16).to(tl.int32)
        low, high = _chosen(low >> half, G.table, ASM), _chosen(high >> half, G.table, ASM)
    return low, high


@triton.jit
def scales_of_chunk(w, row, chunk, mask):
    """Scales of a chunk's low and high codes, float32."""
    L: tl.constexpr = w.layout
    both = load_or_zero(w.small + row * (L.kp // (2 * L.group)) + chunk * 16 // L.group, mask).to(tl.int32)
    d = load_or_zero(w.scale + row * (L.kp // L.super) + chunk * 32 // L.super, mask).to(tl.float32)
    return d * ((both & 15) * 2 + 1).to(tl.float32), d * (((both >> 4) & 15) * 2 + 1).to(tl.float32)
