"""What static scales of the KV cache cut off, counted by layer, against a count by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.evals.saturation import Saturation, saturation
from octavo.runtime import Model
from tests.runtime import tiny

TOKENS = list(range(40))
LARGEST = {f"blk.{i}.cache_{kind}.max": np.array([60, 60], np.float32) for i in range(2) for kind in "kv"}


def test_counts_by_hand() -> None:
    scales = np.array([1, 2], np.float32) / 127
    x = np.array([[[1, -1.5], [2, -2.5]], [[0, 4], [0, 0]]], np.float32)
    assert Saturation("k").more(x, scales, 127) == Saturation("k", cut_off=3, numbers=8, largest=4.0)


def test_by_layer(open_tiny: Callable[..., Model]) -> None:
    narrow = LARGEST | {"blk.1.cache_v.max": np.array([60, 0.01], np.float32)}
    loaded = open_tiny(tiny.tensors() | narrow, cache_type="int8", fuse=False, n_batch=16)
    told: list[tuple[int, int]] = []
    counted = saturation(loaded, TOKENS, context=20, progress=lambda *windows: told.append(windows))
    assert told == [(1, 2), (2, 2)]
    found = {part.name: part for part in counted}
    assert set(found) == {f"blk.{i}.cache_{kind}" for i in range(2) for kind in "kv"}
    assert all(part.numbers == 40 * 2 * tiny.HEAD_DIM for part in found.values())
    assert found.pop("blk.1.cache_v").cut_off > 20 * tiny.HEAD_DIM
    assert not any(part.cut_off for part in found.values())


@pytest.mark.parametrize("config", [{"cache_type": "int8"}, {"cache_type": "f16"}])
def test_none_of_dynamic_scales(open_tiny: Callable[..., Model], config: dict[str, Any]) -> None:
    more = LARGEST if config["cache_type"] == "f16" else {}
    told: list[int] = []
    loaded = open_tiny(tiny.tensors() | more, fuse=False, **config)
    assert saturation(loaded, TOKENS, context=20, progress=lambda done, total: told.append(done)) == []
    assert told == [], "one window shows that scales are dynamic"


def test_fused_graphs_are_refused(open_tiny: Callable[..., Model]) -> None:
    with pytest.raises(UsageError, match="fuse=False"):
        saturation(open_tiny(), TOKENS, context=20)
