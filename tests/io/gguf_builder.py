"""Builds GGUF bytes piece by piece, right or wrong, without any reader's or writer's help."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACK = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True))


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, x: object) -> bytes:
    """A value without its type."""
    return string(x) if kind == STRING else struct.pack("<" + _PACK[kind], x)  # type: ignore[arg-type]


def pair(key: str | bytes, kind: int, x: object) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, x)


def raw_pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """A key with any type number and any bytes."""
    return string(key) + struct.pack("<I", kind) + payload


def array(kind: int, items: Sequence[object]) -> bytes:
    """The payload of an array: element type, length, elements."""
    return struct.pack("<IQ", kind, len(items)) + b"".join(value(kind, x) for x in items)


def info(name: str | bytes, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor info, `dims` in the file's order: the contiguous one first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file: header, pairs, infos, padding, data. The counts are those of `pairs` and `infos` unless given."""
    counts = (len(infos) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


ARCH = pair("general.architecture", STRING, "llama")
WEIGHT = info("a", [8, 2])
DATA = struct.pack("<16f", *range(16))


def tiny() -> bytes:
    """A valid file: an architecture and one F32 tensor [2, 8]."""
    return gguf([ARCH], [WEIGHT], DATA)
