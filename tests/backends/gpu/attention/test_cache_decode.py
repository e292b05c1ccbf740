"""Caches of codes made float16 for attention of prompts: of int8 and fp8 nothing is rounded but scales' factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.attention import prefill_hopper_launch
from octavo.backends.gpu.attention.attention_arguments import PagedCache
from octavo.backends.gpu.attention.prefill_hopper_launch import PrefillShape
from octavo.backends.gpu.device import memory
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.context import Context
from octavo.graph.node import PAGE_SIZE, Node
from octavo.graph.ops import apply
from tests.backends.naive import decoded_pages

HEADS, DIM = 2, 64
PAGES = [[8, 2, 5, 0, 0], [1, 3, 4, 7, 6], [0, 0, 0, 0, 0]]
LENGTHS = (150, 300)
"""Positions of the first two sequences; the third has no tokens."""
rng = np.random.default_rng(3)


def drawn(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of codes [rows, heads, dim], and the numbers that they are, float64."""
    shape = (9 * PAGE_SIZE, HEADS, DIM)
    if kind != "fp8":
        codes = torch.from_numpy(rng.integers(-127, 128, shape, np.int8))
        return codes, codes.double()
    values = torch.from_numpy(rng.standard_normal(shape) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values.view(torch.int8), values.double()


@pytest.mark.parametrize("scaling", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_halves_and_factors(kind: str, scaling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_hopper_launch, "PROGRAMS", 4)
    c, shape = Context(target()), PrefillShape(DIM, 2, kind=kind, scales=scaling)
    where = c.target.device
    (k, keys), (v, values) = drawn(kind), drawn(kind)
    size = (9, HEADS, PAGE_SIZE) if scaling == "dynamic" else (HEADS,)
    k_scales, v_scales = (torch.from_numpy(rng.uniform(1e-6, 0.1, size).astype(np.float32)) for _ in "kv")
    pages = torch.tensor(PAGES, dtype=torch.int32)
    positions = torch.cat([torch.arange(100, 150), torch.arange(300)]).int().to(where)
    starts = torch.tensor([0, 50, 350, 350], dtype=torch.int32, device=where)
    parts = (x.to(where) for x in (k, v, k_scales, v_scales))
    cache = PagedCache(*parts, HEADS, pages.to(where), 5)
    call, halves, factors = prefill_hopper_launch._unpack(c, cache, positions, starts, 0.3, shape)
    assert halves.width == 6, "blocks of two pages are whole"
    written: list[Any] = [halves.k, halves.v] + ([factors.k] if scaling == "dynamic" else [])
    for x in written:
        x.fill_(torch.nan)
    call()
    found_k, found_v = (x.cpu().double().view(3, -1, HEADS, DIM) for x in (halves.k, halves.v))
    for s, length in enumerate(LENGTHS):
        whole = -(-length // shape.block_n) * shape.block_n
        k_factor, v_factor = k_scales * shape.unit * 0.3, v_scales * shape.unit
        if scaling == "dynamic":
            of_blocks = factors.k.cpu().view(3, HEADS, -1, 2, shape.block_n)[s]
            k_factor, v_factor = of_blocks.permute(2, 1, 3, 0).reshape(2, -1, HEADS)[:, :whole]
            assert ((v_factor[:length] >= 1) & (v_factor[:length] < 2)).all()
        wanted_k, wanted_v = (
            decoded_pages(numbers.numpy(), scales.double().numpy(), pages[s].numpy(), length)
            for numbers, scales in ((keys, k_scales), (values, v_scales))
        )
        got_k, got_v = found_k[s, :whole] * k_factor[..., None], found_v[s, :whole] * v_factor[..., None]
        np.testing.assert_allclose(got_k[:length], wanted_k * 0.3, rtol=2e-7)
        np.testing.assert_array_equal(got_v[:length], wanted_v)
        assert not got_k[length:].any()
        assert not got_v[length:].any()


def test_halves_of_q8_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the nearest to code times scale, and zeros behind the last position."""
    monkeypatch.setattr(prefill_hopper_launch, "PROGRAMS", 4)
    c, shape = Context(target()), PrefillShape(DIM, 2, kind="q8_0")
    where = c.target.device
    (k, keys), (v, values) = drawn("q8_0"), drawn("q8_0")
    size = (9 * PAGE_SIZE, HEADS, DIM // 32)
    k_scales, v_scales = (torch.from_numpy(rng.uniform(1e-3, 0.1, size).astype(np.float16)) for _ in "kv")
    pages = torch.tensor(PAGES, dtype=torch.int32)
    positions = torch.cat([torch.arange(100, 150), torch.arange(300)]).int().to(where)
    starts = torch.tensor([0, 50, 350, 350], dtype=torch.int32, device=where)
    cache = PagedCache(*(x.to(where) for x in (k, v, k_scales, v_scales)), HEADS, pages.to(where), 5)
    call, halves, factors = prefill_hopper_launch._unpack(c, cache, positions, starts, 0.3, shape)
    assert factors is None
    halves.k.fill_(torch.nan)
    halves.v.fill_(torch.nan)
    call()
    for found, numbers, scales in ((halves.k, keys, k_scales), (halves.v, values, v_scales)):
        for s, length in enumerate(LENGTHS):
            exact = decoded_pages(numbers.numpy(), scales.double().numpy(), pages[s].numpy(), length)
            wanted = torch.from_numpy(exact.astype(np.float16))
            got = found.cpu().view(3, -1, HEADS, DIM)[s, : -(-length // shape.block_n) * shape.block_n]
            torch.testing.assert_close(got[:length], wanted, rtol=0, atol=0)
            assert not got[length:].any()


def test_what_it_takes_is_announced() -> None:
    """Bytes for as many sequences as may be, up to a limit; none for float16, few tokens or other devices."""

    def more(kind: Any, sequences: int, pages: int, arch: str = "sm_90", tokens: int = 512) -> int:
        q = Node("input", (), ("tokens", 32, 128), "f32", name="q")
        k, v = (Node("cache", (), ("rows", 8, 128), kind, name=name) for name in "kv")
        places = (("positions", "tokens"), ("starts", "boundaries"))
        where = [Node("input", (), (size,), "i32", name=name) for name, size in places]
        table = Node("input", (), ("sequences", "pages"), "i32", name="pages")
        node = apply("attention", q, k, v, *where, table, scale=1.0, page_size=PAGE_SIZE)
        limits = {"tokens": tokens, "sequences": sequences, "pages": pages, "rows": PAGE_SIZE, "boundaries": 2}
        return memory.needs([node], limits, arch) - memory.needs([node], limits, "sm_80")

    assert more("int8", 1, 512) == 512 * PAGE_SIZE * 8 * (4 * 128 + 8)
    assert more("fp8", 4, 511) == 4 * more("int8", 1, 512)
    assert more("int8", 1000, 512) == prefill_hopper_launch.MAX_BYTES // more("int8", 1, 512) * more("int8", 1, 512)
    assert more("q8_0", 1, 512) == more("int8", 1, 512)
    assert [more("f16", 1, 512), more("int8", 1, 7), more("int8", 1, 512, tokens=100), more("int4", 1, 512)] == [0] * 4
    assert more("int8", 1, 512, "sm_100") == 0
