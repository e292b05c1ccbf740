"""Malformed files, each a valid tiny file with one thing wrong, and what the error about it has to name."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import gguf_builder as b
from gguf_builder import ARCH, ARRAY, BOOL, DATA, F32, STRING, U32, WEIGHT, gguf, info, pair, raw_pair, string, tiny

AFTER_ARCH = 24 + len(ARCH)  # byte at which the second pair, or the first tensor info, starts


@dataclass(frozen=True)
class Hostile:
    """`data` is refused with an error at byte `offset` whose text contains `field` and `problem`."""

    name: str
    data: bytes
    offset: int
    field: str
    problem: str


def _pair(name: str, payload: bytes, offset: int, field: str, problem: str) -> Hostile:
    """A file whose second pair is `payload`, wrong `offset` bytes in."""
    return Hostile(name, gguf([ARCH, payload], [WEIGHT], DATA), AFTER_ARCH + offset, field, problem)


def _info(name: str, payload: bytes, offset: int, field: str, problem: str) -> Hostile:
    """A file whose only tensor info is `payload`, wrong `offset` bytes in."""
    return Hostile(name, gguf([ARCH], [payload], DATA), AFTER_ARCH + offset, field, problem)


def _alignment(value: int) -> Hostile:
    name = "general.alignment"
    return _pair(f"alignment {value}", pair(name, U32, value), 8 + len(name) + 4, name, f"alignment of {value}")


HUGE = 1 << 63
NESTED = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(5000)) + b.array(U32, [1])
K = 8 + 1 + 4  # bytes before the payload of a pair whose key is one letter
D = 8 + 1  # bytes before the dimension count of a tensor info whose name is one letter

HEADERS = [
    Hostile("empty file", b"", 0, "magic", "empty"),
    Hostile("one byte", b"G", 0, "magic", "not a GGUF file"),
    Hostile("magic alone", b"GGUF", 4, "header", "ends after 4 bytes"),
    Hostile("23 bytes", tiny()[:23], 23, "header", "ends after 23 bytes"),
    Hostile("wrong magic", gguf(magic=b"GGML"), 0, "magic", "b'GGML'"),
    Hostile("version 0", gguf(version=0), 4, "version", "unknown version 0"),
    Hostile("version 1", gguf(version=1), 4, "version", "version 1"),
    Hostile("version 4", gguf(version=4), 4, "version", "unknown version 4"),
    Hostile("big-endian", gguf(version=3 << 24), 4, "version", "big-endian"),
    Hostile("tensor count of 2^63", gguf(n_tensors=HUGE), 8, "tensor count", str(HUGE)),
    Hostile("key count of 2^63", gguf(n_pairs=HUGE), 16, "metadata count", str(HUGE)),
    Hostile("one key too many", gguf([ARCH], n_pairs=2), AFTER_ARCH, "key 2 of 2 name", "empty"),
    Hostile("cut in a key", gguf([ARCH])[:38], 24, "key 1 of 1 name length", "20"),
    Hostile("cut in a value", tiny()[: AFTER_ARCH - 1], AFTER_ARCH - 13, "general.architecture", "5"),
    Hostile("cut in a tensor info", tiny()[: AFTER_ARCH + 36], AFTER_ARCH + 33, "tensor 'a' offset", "ends after 3"),
]

VALUES = [
    _pair("string longer than the file", raw_pair("k", STRING, struct.pack("<Q", 1 << 20)), K, "key 'k'", "left"),
    _pair("string of 2^64-1", raw_pair("k", STRING, b"\xff" * 8), K, "key 'k'", str((1 << 64) - 1)),
    _pair("key longer than the file", struct.pack("<Q", HUGE) + b"k", 0, "key 2 of 2 name length", str(HUGE)),
    _pair("empty key", pair("", U32, 1), 0, "key 2 of 2 name", "empty"),
    _pair("array length of 2^63", raw_pair("k", ARRAY, struct.pack("<IQ", U32, HUGE)), K + 4, "key 'k'", str(HUGE)),
    _pair("string array of 2^63", raw_pair("k", ARRAY, struct.pack("<IQ", STRING, HUGE)), K + 4, "key 'k'", str(HUGE)),
    _pair("string in an array past the end",
          raw_pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + string("x") + struct.pack("<Q", HUGE)),
          K + 21, "key 'k' array element", str(HUGE)),
    _pair("arrays nested 5,000 deep", raw_pair("k", ARRAY, NESTED), K + 4 * 12, "key 'k' array", "nested"),
    _pair("value type 13", raw_pair("k", 13, b"\0" * 8), K - 4, "key 'k' value type", "13"),
    _pair("element type 99", raw_pair("k", ARRAY, struct.pack("<IQ", 99, 1)), K, "key 'k' array element type", "99"),
    _pair("key not UTF-8", pair(b"a\xffb", U32, 1), 9, "key 2 of 2 name", "UTF-8"),
    _pair("duplicate key", ARCH, 0, "key 'general.architecture'", "duplicate"),
    _pair("bool of 2", raw_pair("k", BOOL, b"\2"), K, "key 'k'", "bool of 2"),
    _pair("bool of 2 in an array", raw_pair("k", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\0\1\2"),
          K + 14, "key 'k'", "bool of 2"),
    _alignment(0),
    _alignment(48),
    _alignment(1 << 21),
    _pair("alignment a float", pair("general.alignment", F32, 32.0), 29, "general.alignment", "F32"),
]

TENSORS = [
    _info("name not UTF-8", info(b"\xff", [8]), 8, "tensor 1 of 1 name", "UTF-8"),
    _info("no name", info("", [8]), 0, "tensor 1 of 1 name", "empty"),
    _info("name of 256 bytes", info("n" * 256, [8]), 0, "tensor 1 of 1 name", "256"),
    _info("no dimensions", info("a", []), D, "tensor 'a' dimension count", "0 dimensions"),
    _info("5 dimensions", info("a", [1] * 5), D, "tensor 'a' dimension count", "5 dimensions"),
    _info("2^32-1 dimensions", string("a") + b"\xff" * 24, D, "tensor 'a' dimension count", "4294967295"),
    _info("a size of 0", info("a", [8, 0]), D + 4, "tensor 'a' dimensions", "size of 0"),
    _info("product overflows", info("a", [1 << 32, 1 << 32]), D + 4, "tensor 'a' dimensions", "overflows"),
    _info("size of 2^64-1", info("a", [(1 << 64) - 1]), D + 4, "tensor 'a' dimensions", "overflows"),
    _info("bytes past the end", info("a", [1 << 61]), D + 4 + 8 + 4, "tensor 'a' offset", "is incomplete"),
    _info("type 1000", info("a", [8], kind=1000), D + 4 + 8, "tensor 'a' type", "1000"),
    _info("a removed type", info("a", [32], kind=4), D + 4 + 8, "tensor 'a' type", "4"),
    _info("row of half a block", info("a", [16, 2], kind=8), D + 4, "tensor 'a' dimensions", "Q8_0"),
    _info("one value past the end", info("a", [17]), D + 4 + 8 + 4, "tensor 'a' offset", "is incomplete"),
    _info("offset of 2^64-32", info("a", [8], offset=(1 << 64) - 32), D + 16, "tensor 'a' offset", "is incomplete"),
    _info("misaligned", info("a", [8], offset=4), D + 16, "tensor 'a' offset", "misaligned"),
    Hostile("duplicate tensor", gguf([ARCH], [WEIGHT, info("a", [8], offset=64)], DATA * 2),
            AFTER_ARCH + len(WEIGHT), "tensor 'a'", "duplicate"),
    Hostile("overlapping tensors", gguf([ARCH], [WEIGHT, info("b", [8], offset=32)], DATA * 2),
            AFTER_ARCH + len(WEIGHT) + D + 16, "tensor 'b' offset", "overlaps tensor 'a'"),
    Hostile("the same bytes twice", gguf([ARCH], [WEIGHT, info("b", [8, 2])], DATA * 2),
            AFTER_ARCH + len(WEIGHT) + D + 4 + 16 + 4, "tensor 'b' offset", "overlaps tensor 'a'"),
]

CORPUS = HEADERS + VALUES + TENSORS
