"""4-bit weights: packing, both levels of scales, and QQQ's layout against the order in which its packer writes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats.rows import pack_int4, unpack_int4
from octavo.ops import definition
from octavo.ops.qqq import export_qqq, import_qqq
from octavo.ops.w4a8 import W4A8Weight, quantize_w4a8

Group = Literal[128] | None


def weights(n: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(n + k)
    return (rng.standard_normal((n, k)) * np.exp(rng.standard_normal((n, 1)))).astype(np.float32)


def test_packing_keeps_all_codes() -> None:
    codes = (np.arange(3 * 256, dtype=np.int16).reshape(3, 256) * 5 % 16 - 8).astype(np.int8)
    packed = pack_int4(codes)
    assert packed.shape == (3, 128)
    assert packed[1, 64 + 5] == (codes[1, 128 + 5] & 15) | (codes[1, 128 + 69] & 15) << 4
    assert (unpack_int4(packed) == codes).all()


@pytest.mark.parametrize("group", [None, 128])
def test_round_to_nearest(group: Group) -> None:
    w = weights(5, 384)
    w[2] = 0
    w[3, :128] = 0
    quantized = quantize_w4a8(w, group)
    step = np.abs(w.reshape(5, -1, 128 if group else 384)).max(axis=-1, keepdims=True) / 7
    step = np.broadcast_to(step, (5, step.shape[1], 384 // step.shape[1])).reshape(5, 384)
    loss = np.abs(quantized.dequantize() - w)
    rounding = 0 if group is None else 0.51 * quantized.channel_scale[:, None]
    assert (loss <= step * 0.502 + rounding).all()
    assert not quantized.dequantize()[2].any()
    assert quantized.nbytes == 5 * 192 + 20 + (30 if group else 0)
    if group:
        assert np.abs(quantized.int8()).max(axis=1).tolist() == [127, 127, 0, 127, 127]


def test_scales_of_groups_round_as_a_half_fma_onto_1152_does() -> None:
    """QQQ's kernel adds code * scale to 1024 + 128 in f16, where one unit in the last place is 1."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (64, 128)).astype(np.int8)
    scale = np.concatenate([rng.uniform(0, 15.5, 48), [0.5, 1.5, 2.5, 3.5, 0.25, 6.5, 15.75, 0] + [1.125] * 8])
    weight = W4A8Weight(pack_int4(codes), np.ones(64, np.float32), scale.astype(np.float16)[:, None])
    exact = codes.astype(np.float64) * weight.group_scale.astype(np.float64)
    onto = (exact + 1152).astype(np.float16)  # exact in float64, and so rounded once
    assert (weight.int8() == onto.astype(np.int32) - 1152).all()


def tile_order(k: int, n: int, word: tuple[int, ...]) -> np.ndarray:
    """For each nibble of B, in memory order, which code of [K, N] it is: written as loops, from the layout's terms."""
    order = []
    for k16 in range(k // 16):
        for n64 in range(n // 64):
            for lane in range(32):
                for block in range(4):
                    eight = [
                        ((16 * k16 + 4 * (lane % 4) + row), 64 * n64 + 16 * block + lane // 4 + 8 * right)
                        for right in (0, 1) for row in range(4)
                    ]
                    order += [eight[i] for i in word]
    return np.array(order)


@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize(("n", "k"), [(64, 128), (192, 256)])
def test_qqq_layout(n: int, k: int, group: Group) -> None:
    weight = quantize_w4a8(weights(n, k), group)
    tensors = export_qqq(weight)
    word = (0, 2, 4, 6, 1, 3, 5, 7) if group else (4, 0, 5, 1, 6, 2, 7, 3)
    rows, columns = tile_order(k, n, word).T
    codes = weight.codes().T[rows, columns].astype(np.int64)
    nibbles = (codes + 8 if group else codes & 15).reshape(-1, 8)
    words = (nibbles << np.arange(0, 32, 4)).sum(axis=1).astype(np.uint32).view(np.int32)
    assert tensors["B"].shape == (k // 16, 2 * n)
    assert (tensors["B"].reshape(-1) == words).all()
    in_32 = [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27, 4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22,
             23, 30, 31]
    stored = weight.channel_scale if group else weight.channel_scale / 16
    assert (tensors["s_channel"] == stored.reshape(-1, 32)[:, in_32].reshape(1, n)).all()
    if group:
        by_8 = weight.group_scale.T.reshape(k // 128, n // 64, 8, 8).swapaxes(2, 3)
        assert (tensors["s_group"] == by_8.reshape(k // 128, n)).all()
    else:
        assert tensors["s_group"].size == 0


@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_qqq_round_trip_loses_nothing(group: Group, kind: str) -> None:
    rng = np.random.default_rng(5)
    tensors: dict[str, Any] = {
        "B": rng.integers(-(2**31), 2**31, (16, 256)).astype(np.int32),
        "s_channel": rng.uniform(1e-3, 1, (1, 128)).astype(np.float32),
        "s_group": rng.uniform(0, 15, (2, 128)).astype(np.float16) if group else np.zeros(0, np.float16),
    }
    given = tensors
    if kind == "torch":
        import torch

        given = {name: torch.from_numpy(x.copy()) for name, x in tensors.items()}
    back = export_qqq(import_qqq(given))
    assert back.keys() == tensors.keys()
    assert all(back[name].dtype == x.dtype and (back[name] == x).all() for name, x in tensors.items())


def test_torch_and_numpy_hold_the_same() -> None:
    weight = quantize_w4a8(weights(4, 256), 128)
    moved = weight.to("cpu")
    assert str(moved.packed.dtype) == "torch.uint8"
    assert (moved.dequantize() == weight.dequantize()).all()


@pytest.mark.parametrize("group", [None, 128])
def test_product_is_near_that_of_the_floats(group: Group) -> None:
    x, w = weights(7, 512), weights(40, 512)
    codes, scale = definition.quantize_int8(x, "token")
    y = definition.w4a8_gemm(codes, quantize_w4a8(w, group), scale)
    assert np.linalg.norm(y - x @ w.T) / np.linalg.norm(x @ w.T) < (0.15 if group else 0.2)


PACKED, CHANNELS = np.zeros((2, 64), np.uint8), np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((PACKED.astype(np.int8), CHANNELS), "packed codes are int8"),
        ((PACKED[:, :32], CHANNELS), r"uint8 \[2, 32\]"),
        ((PACKED, CHANNELS[:1]), r"scales of channels are float32 \[1\]"),
        ((PACKED, CHANNELS.astype(np.float64)), "float64"),
        ((PACKED, CHANNELS, np.ones((2, 2), np.float16)), r"scales of groups are float16 \[2, 2\]"),
        ((PACKED + 0x77, CHANNELS, np.full((2, 1), 18.5, np.float16)), "more than 8 bits"),
    ],
)
def test_parts_that_do_not_fit(parts: tuple[Any, ...], said: str) -> None:
    with pytest.raises(QuantFormatError, match=said):
        W4A8Weight(*parts)


def test_scales_that_are_not_numbers() -> None:
    with pytest.raises(NonFiniteError):
        W4A8Weight(PACKED, np.array([1, np.nan], np.float32))
    with pytest.raises(NonFiniteError):
        W4A8Weight(PACKED, CHANNELS, np.full((2, 1), np.inf, np.float16)).to("cpu")
    with pytest.raises(NonFiniteError):
        quantize_w4a8(np.full((1, 128), np.nan, np.float32))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(QuantFormatError, match="K a multiple of 128"):
        quantize_w4a8(np.zeros((2, 192), np.float32))
    with pytest.raises(QuantFormatError, match="groups of 64"):
        quantize_w4a8(np.zeros((2, 128), np.float32), 64)  # type: ignore[arg-type]
    with pytest.raises(QuantFormatError, match="multiples of 64"):
        export_qqq(quantize_w4a8(weights(48, 128)))
    with pytest.raises(QuantFormatError, match="allowed: B, s_channel"):
        import_qqq({"qweight": PACKED})
    with pytest.raises(QuantFormatError, match="B is uint8"):
        import_qqq({"B": PACKED, "s_channel": CHANNELS})
