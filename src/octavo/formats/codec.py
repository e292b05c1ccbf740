"""From packed bytes to planes to numbers, and back."""

from __future__ import annotations

import numpy as np

from octavo.formats.qtensor import QTensor
from octavo.formats.spec import F32, Planes


def unpack(t: QTensor) -> Planes:
    """The planes of a tensor [..., K]."""
    fmt = t.format
    blocks = t.data.reshape(*t.shape[:-1], t.shape[-1] // fmt.block, fmt.block_bytes)
    fields = {}
    offset = 0
    for f in fmt.fields:
        raw = np.ascontiguousarray(blocks[..., offset : offset + f.nbytes])
        fields[f.name] = raw.view(f.dtype)
        offset += f.nbytes
    return fmt.unpack(fields)


def dequantize(t: QTensor) -> F32:
    """float32 values of shape t.shape: d * sc * code(q) - dmin * m, in that order of operations."""
    p, fmt = unpack(t), t.format
    if fmt.is_float:
        if fmt.name == "BF16":
            return (p.q.astype(np.uint32) << 16).view(np.float32)
        return p.q.astype(np.float32)
    assert p.d is not None
    d = p.d if p.sc is None else np.repeat(p.d, fmt.super // fmt.group, axis=-1) * p.sc.astype(np.float32)
    code = p.q.astype(np.float32) - fmt.offset
    return (code.reshape(*d.shape, fmt.group) * d[..., None]).reshape(t.shape)
