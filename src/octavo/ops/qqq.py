"""QQQ's checkpoints: their tensors `B`, `s_channel` and `s_group` as a `W4A8Weight`, and back, without loss.

`formats.qqq` has the order of their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.qqq import qqq_codes, qqq_tensors
from octavo.formats.rows import GROUP, pack_int4
from octavo.formats.spec import AnyArray
from octavo.ops.place import is_torch
from octavo.ops.types import AnyTensor
from octavo.ops.w4a8 import W4A8Weight


def import_qqq(tensors: Mapping[str, AnyTensor]) -> W4A8Weight:
    """The weight of a layer's tensors `B`, `s_channel` and, with groups, `s_group` (NumPy arrays or torch tensors).

    Scales of channels are kept a sixteenth of what they are, for codes in the high half of their bytes. Raises
    QuantFormatError where a tensor is missing, or shapes and types are not those of QQQ.
    """
    words, channel, group = (_tensor(tensors, name) for name in ("B", "s_channel", "s_group"))
    if words is None or channel is None:
        raise QuantFormatError(f"QQQ tensors {sorted(tensors)} (allowed: B, s_channel, and s_group or none)")
    if words.dtype != np.int32 or words.ndim != 2 or words.shape[0] % (GROUP // 16) or words.shape[1] % 128:
        raise QuantFormatError(
            f"B is {words.dtype} {list(words.shape)} (allowed: int32 [K / 16, 2 N], K a multiple of {GROUP}, N of 64)"
        )
    k, n = words.shape[0] * 16, words.shape[1] // 2
    grouped = group is not None and group.size > 0
    _require("s_channel", channel, np.float32, (1, n))
    if grouped:
        assert group is not None
        _require("s_group", group, np.float16, (k // GROUP, n))
    codes, scale, groups = qqq_codes(words, channel, group if grouped else None)
    return W4A8Weight(pack_int4(codes), scale, groups)


def export_qqq(weight: W4A8Weight) -> dict[str, AnyArray]:
    """QQQ's tensors of a weight, NumPy: B, s_channel and s_group (empty without groups).

    Raises QuantFormatError where N is not a multiple of 64.
    """
    if not isinstance(weight, W4A8Weight):
        raise QuantFormatError(f"weight is {type(weight).__name__}, not a W4A8Weight")
    n, _ = weight.shape
    if n % 64:
        raise QuantFormatError(f"QQQ's layout of a weight with {n} channels (allowed: multiples of 64)")
    groups = None if weight.group_scale is None else _numpy(weight.group_scale)
    return qqq_tensors(weight.codes(), _numpy(weight.channel_scale), groups)


def _tensor(tensors: Mapping[str, Any], name: str) -> AnyArray | None:
    found = tensors.get(name)
    if found is None:
        return None
    if not isinstance(found, np.ndarray) and not is_torch(found):
        raise QuantFormatError(f"{name} is {type(found).__name__} (allowed: a NumPy array or a torch tensor)")
    return _numpy(found)


def _numpy(x: Any) -> AnyArray:
    array: AnyArray = x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()
    return array


def _require(name: str, x: AnyArray, dtype: Any, shape: tuple[int, ...]) -> None:
    if x.dtype != dtype or x.shape != shape:
        raise QuantFormatError(f"{name} is {x.dtype} {list(x.shape)}, not {np.dtype(dtype)} {list(shape)}")
