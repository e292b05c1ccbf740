"""What the reader accepts at most, beyond what the format itself demands. docs/gguf.md lists these.

Each is far above what real files hold and low enough that a hostile header costs little time and memory.
"""

from __future__ import annotations

MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 21  # in all arrays of a file together
MAX_INNER_ARRAYS = 1 << 16  # in all values of a file together
MAX_VALUE_BYTES = 1 << 26
MAX_DEPTH = 4  # an array of arrays is 2 deep
MAX_KEY_BYTES = 1024
MAX_NAME_BYTES = 255
MAX_DIMS = 4
MAX_SHARDS = 4096
MAX_TENSOR_BYTES = (1 << 63) - 1
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32


def alignment_is_valid(alignment: int) -> bool:
    """Whether `alignment` (bytes) is a power of two in the allowed range."""
    return MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0


ALIGNMENT_RULE = f"a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
