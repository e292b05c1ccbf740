"""Codes of keys and values for attention of prompts by 8-bit products, against what they are said to be, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.attention import prefill_hopper_launch
from octavo.backends.gpu.attention.attention_arguments import PagedCache
from octavo.backends.gpu.attention.prefill_hopper_launch import BLOCK, Prefill8BitShape
from octavo.backends.gpu.device import memory
from octavo.backends.gpu.device.torch_device import INTERPRETER, target
from octavo.backends.gpu.launch.context import Context
from octavo.errors import OctavoError, UsageError
from octavo.graph.node import PAGE_SIZE, Node
from octavo.graph.ops import apply
from tests.backends.naive import encoded_blocks, rows_of

HEADS, DIM = 2, 64
PAGES = [[8, 2, 5, 0, 0], [1, 3, 4, 7, 6], [0, 0, 0, 0, 0]]
LENGTHS = (150, 300)
"""Positions of the first two sequences; the third has no tokens."""
rng = np.random.default_rng(3)


def cache_of(kind: str, scaling: str) -> tuple[list[torch.Tensor], list[np.ndarray[Any, Any]]]:
    """Keys, values and their scales, and what both stand for, [rows, heads, dim]; keys of a head have a mean."""
    shape, tensors, scales, floats = (9 * PAGE_SIZE, HEADS, DIM), [], [], []
    for _ in "kv":
        if not kind:
            tensors.append(torch.from_numpy(rng.standard_normal(shape).astype(np.float16) + 2))
            floats.append(tensors[-1].double().numpy())
            continue
        values = torch.from_numpy(rng.standard_normal(shape) * 40).clamp(-120, 120)
        codes = values.to(torch.float8_e4m3fn if kind == "fp8" else torch.int8)
        tensors.append(codes.view(torch.int8))
        if kind == "q8_0":
            scales.append(torch.from_numpy(rng.uniform(1e-3, 0.1, (*shape[:2], DIM // 32)).astype(np.float16)))
            wide = scales[-1].double().repeat_interleave(32, 2)
        elif scaling == "dynamic":
            scales.append(torch.from_numpy(rng.uniform(1e-3, 0.1, (9, HEADS, PAGE_SIZE)).astype(np.float32)))
            wide = scales[-1].double().transpose(1, 2).reshape(-1, HEADS, 1)
        else:
            scales.append(torch.from_numpy(rng.uniform(1e-3, 0.1, HEADS).astype(np.float32)))
            wide = scales[-1].double()[None, :, None]
        number = codes.double() * wide
        floats.append((number.half().double() if kind == "q8_0" else number).numpy())
    return tensors + scales, floats


def order_of_values() -> list[int]:
    """Which position of a block is where: of 16, a thread has columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a sum."""
    return [16 * i + 2 * t + j for i in range(BLOCK // 16) for t in range(4) for j in (0, 1, 8, 9)]


@pytest.mark.parametrize("products", ["int8", "fp8"])
@pytest.mark.parametrize(("kind", "scaling"), [("", ""), ("q8_0", ""), ("int8", "dynamic"), ("fp8", "static")])
def test_codes(kind: str, scaling: str, products: Any) -> None:
    c, shape = Context(target()), Prefill8BitShape(DIM, 2, kind=kind, scales=scaling, products=products, converts=False)
    where, (parts, (keys, values)) = c.target.device, cache_of(kind, scaling)
    pages = torch.tensor(PAGES, dtype=torch.int32)
    positions = torch.cat([torch.arange(100, 150), torch.arange(300)]).int().to(where)
    starts = torch.tensor([0, 50, 350, 350], dtype=torch.int32, device=where)
    k, v, *scales = (x.to(where) for x in parts)
    cache = PagedCache(k, v, *(scales or (None, None)), HEADS, pages.to(where), 5)
    call, codes = prefill_hopper_launch.encode(c, cache, positions, starts, shape)
    assert codes.width == 384, "blocks of two pages are whole"
    codes.k.view(torch.int8).fill_(77)
    codes.v.view(torch.int8).fill_(77)
    codes.factors.fill_(torch.nan)
    call()
    top = 127 if products == "int8" else 448
    for s, length in enumerate(LENGTHS):
        rows = rows_of(pages[s].numpy(), length)
        for head in range(HEADS):
            place = s * HEADS + head
            wanted_k = encoded_blocks(keys[rows, head], top, centered=True)
            wanted_v = encoded_blocks(values[rows, head], 448, centered=False)
            found_k = codes.k.cpu().float().view(3 * HEADS, -1, DIM)[place].double().numpy()
            found_v = codes.v.cpu().float().view(3 * HEADS, DIM, -1)[place].double().numpy().T
            factors = codes.factors.cpu().double().view(3 * HEADS, -1, 2)[place].numpy()
            for block, ((key, k_unit), (value, v_unit)) in enumerate(zip(wanted_k, wanted_v, strict=True)):
                np.testing.assert_allclose(factors[block, 0], k_unit, rtol=1e-5)
                np.testing.assert_allclose(2.0 ** factors[block, 1], v_unit, rtol=1e-5)
                got = np.empty((BLOCK, DIM))
                got[order_of_values()] = found_v[block * BLOCK : (block + 1) * BLOCK]
                check(found_k[block * BLOCK : (block + 1) * BLOCK], key, integers=products == "int8")
                check(got, value, integers=False)


def check(found: Any, wanted: Any, *, integers: bool) -> None:
    """Codes are the nearest to what is `wanted`, or as near as float32 tells, and zeros in rows after it."""
    count = len(wanted)
    assert not found[count:].any()
    numbers = np.arange(-127, 128.0) if integers else e4m3_numbers()
    nearest = np.abs(numbers[None, None, :] - wanted[..., None]).min(-1)
    np.testing.assert_array_less(np.abs(found[:count] - wanted), nearest + 1e-4 * np.abs(wanted) + 1e-4)


def e4m3_numbers() -> Any:
    """All there are."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    return every[np.isfinite(every)]


def attention(kind: Any = "f16", dim: int = 128, **attributes: Any) -> Node:
    q = Node("input", (), ("tokens", 32, dim), "f32", name="q")
    k, v = (Node("cache", (), ("rows", 8, dim), kind, name=name) for name in "kv")
    places = (("positions", "tokens"), ("starts", "boundaries"))
    where = [Node("input", (), (size,), "i32", name=name) for name, size in places]
    table = Node("input", (), ("sequences", "pages"), "i32", name="pages")
    return apply("attention", q, k, v, *where, table, scale=1.0, page_size=PAGE_SIZE, **attributes)


def test_what_codes_take_is_announced() -> None:
    def more(kind: Any, pages: int, tokens: int = 512, **attributes: Any) -> int:
        limits = {"tokens": tokens, "sequences": 1, "pages": pages, "rows": PAGE_SIZE, "boundaries": 2}
        nodes = [attention(kind, **attributes)]
        return memory.needs(nodes, limits, "sm_90", "int8") - memory.needs(nodes, limits, "sm_90")

    assert more("f16", 512) == 512 * PAGE_SIZE * 8 * 2 * 128 + 256 * 8 * 8
    assert more("q8_0", 511) == more("f16", 512)
    assert [more("f16", 7), more("f16", 512, tokens=100), more("int4", 512), more("f16", 512, window=64)] == [0] * 4


def test_what_it_cannot_take_is_refused() -> None:
    prefill_hopper_launch.require_served("int8", [])
    prefill_hopper_launch.require_served("int8", [attention(), attention(window=64)])
    for other in (attention("f32"), attention("int4"), attention(dim=96), attention(cap=30.0)):
        with pytest.raises(UsageError, match=r"attention is int8, which no layer .*allowed: exact"):
            prefill_hopper_launch.require_served("int8", [other])
    with pytest.raises(OctavoError, match=r"attention fp8 on .*interpreter.*allowed: exact"):
        prefill_hopper_launch.require("fp8", INTERPRETER, deterministic=False)
