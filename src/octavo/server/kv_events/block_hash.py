"""Hashes of pages, chained from the first one of a sequence: vLLM's of the algorithm sha256_cbor.

The hash of a page is the SHA-256 of the CBOR array [hash of the page before, tokens, extra keys], in canonical form
(RFC 8949, 4.2.1). Before the first page stands the hash of a seed, which is a text: PYTHONHASHSEED or, where that is
not set, the one that vLLM has then. Source: vllm/v1/core/kv_cache_utils.py and vllm/utils/hashing.py of vLLM 0.33.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from functools import cache

DEFAULT_SEED = "vllm-none-hash"
UNSIGNED, BYTES, TEXT, ARRAY, NULL = 0x00, 0x40, 0x60, 0x80, b"\xf6"
ExtraKey = tuple[str, ...]


def cbor_head(major: int, n: int) -> bytes:
    """The head of an item of a major type with an argument, in as few bytes as it takes."""
    if n < 24:
        return bytes((major | n,))
    if n < 1 << 8:
        return bytes((major | 24, n))
    if n < 1 << 16:
        return struct.pack(">BH", major | 25, n)
    if n < 1 << 32:
        return struct.pack(">BI", major | 26, n)
    return struct.pack(">BQ", major | 27, n)


@cache
def _token(token: int) -> bytes:
    """A token as an item, kept: there are as many as the vocabulary has."""
    return cbor_head(UNSIGNED, token)


def cbor_text(text: str) -> bytes:
    data = text.encode()
    return cbor_head(TEXT, len(data)) + data


def first_parent(seed: str | None = None) -> bytes:
    """What stands in place of the hash of a page before the first one."""
    text = os.environ.get("PYTHONHASHSEED", DEFAULT_SEED) if seed is None else seed
    return hashlib.sha256(cbor_text(text)).digest()


def block_hash(parent: bytes, tokens: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """The hash of a page: 32 bytes.

    parent      the hash of the page before it, or `first_parent`
    extra_keys  what else its keys and values depend on: ("lora", name, path), or ("cache_salt", salt) of a first page
    """
    parts = [
        cbor_head(ARRAY, 3), cbor_head(BYTES, len(parent)), parent,
        cbor_head(ARRAY, len(tokens)), *map(_token, tokens),
    ]
    if extra_keys:
        parts.append(cbor_head(ARRAY, len(extra_keys)))
        for key in extra_keys:
            parts += [cbor_head(ARRAY, len(key)), *map(cbor_text, key)]
    else:
        parts.append(NULL)
    return hashlib.sha256(b"".join(parts)).digest()


def short_hash(digest: bytes) -> int:
    """The last 64 bits of a hash, which stand for it in events."""
    return int.from_bytes(digest[-8:], "big")
