"""What files hold, as a digest: equal only where all their bytes are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from os import PathLike

from octavo.io.regular_file import open_regular

SLAB = 1 << 23
"""Bytes that a thread hashes at a time."""


def files_digest(paths: Iterable[str | PathLike[str]], threads: int) -> str:
    """The SHA-256 of the SHA-256s of each file's size and of its parts of SLAB bytes, in order; names don't count.

    All bytes are read: a core hashes 1 to 2 GB in a second. Raises FileError for a file that can't be read.
    """
    whole, slabs = sha256(), list[tuple[str, int]]()
    for path in map(os.fsdecode, paths):
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        whole.update(f"{size}\n".encode())
        slabs += [(path, start) for start in range(0, size, SLAB)]
    pool = ThreadPoolExecutor(threads, "octavo-digest")
    try:
        for found in pool.map(_slab_digest, slabs):
            whole.update(found)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the rest of a large file
    return whole.hexdigest()


def _slab_digest(slab: tuple[str, int]) -> bytes:
    path, start = slab
    digest, left = sha256(), SLAB
    with open_regular(path) as file:
        file.seek(start)
        while left and (part := file.read(left)):
            digest.update(part)
            left -= len(part)
    return digest.digest()
