"""Modules as other tools publish them, packed here value by value from the formats' descriptions.

Each function takes a matrix [N, K] and gives the module's tensors by the ends of their names, and the values, float32,
that they stand for. Nothing here is taken from the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Parts = dict[str, np.ndarray]
Tensors = Callable[[np.ndarray], tuple[Parts, np.ndarray]]


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [N, K] as one number of K * bits bits a row, the first code lowest, cut into int32 words."""
    each = (codes[..., None] >> np.arange(bits)) & 1
    row = each.reshape(len(codes), -1).astype(np.uint8)
    whole = np.zeros((len(codes), -(-row.shape[1] // 32) * 32), np.uint8)
    whole[:, : row.shape[1]] = row
    return np.packbits(whole, axis=1, bitorder="little").view("<i4")


def affine(w: np.ndarray, bits: int, group: int, dtype: Any = np.float16) -> tuple[np.ndarray, ...]:
    """Codes [N, K], scales [N, K / group] of a type and whole zero points of each group's range."""
    groups = w.reshape(len(w), -1, group)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scale = ((high - low) / ((1 << bits) - 1)).astype(dtype)
    d = scale.astype(np.float32)
    zero = np.clip(np.round(-low / d), 0, (1 << bits) - 1)
    codes = np.clip(np.round(groups / d[..., None]) + zero[..., None], 0, (1 << bits) - 1)
    return codes.reshape(w.shape).astype(np.int64), scale, zero.astype(np.int64)


def symmetric(w: np.ndarray, bits: int, group: int, dtype: Any = np.float16) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] from 0 on, whose middle is 0.0, and scales."""
    groups, middle = w.reshape(len(w), -1, group), 1 << (bits - 1)
    scale = (np.abs(groups).max(-1) / (middle - 0.5)).astype(dtype)
    codes = np.clip(np.round(groups / scale.astype(np.float32)[..., None]) + middle, 0, 2 * middle - 1)
    return codes.reshape(w.shape).astype(np.int64), scale


def values(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | int) -> np.ndarray:
    """(code - zero) * scale, float32."""
    groups = codes.reshape(*scale.shape, -1) - (zero if isinstance(zero, int) else zero[..., None])
    return (groups.astype(np.float32) * scale.astype(np.float32)[..., None]).reshape(codes.shape)


PLANES = {3: [(2, 0), (1, 2)], 5: [(4, 0), (1, 4)], 6: [(4, 0), (2, 4)], 7: [(4, 0), (2, 4), (1, 6)]}
"""Width of each plane of codes and the bit that it begins at."""


def planar(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [N, K] as int32 [N, K * bits / 32]: of each 32 of a row, word after word, a plane after another."""
    words = []
    for start in range(0, codes.shape[1], 32):
        for width, first in PLANES[bits]:
            for i in range(width):
                word, count = np.zeros(len(codes), np.uint32), 32 // width
                for j in range(count):
                    part = codes[:, start + i * count + j] >> first & (1 << width) - 1
                    word |= part.astype(np.uint32) << np.uint32(width * j)
                words.append(word)
    return np.stack(words, axis=1).view(np.int32)


def gptq(
    bits: int, group: int, *, sym: bool, v2: bool, ordered: bool = False, word: int = 32, seed: int = 0
) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        k = w.shape[1]
        size = k if group < 0 else group
        perm = np.random.default_rng(k + seed).permutation(k) if ordered else np.arange(k)
        sorted_w = w[:, perm]
        if sym:
            codes, scale = symmetric(sorted_w, bits, size)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(sorted_w, bits, size)
        want = values(codes, scale, zero)
        natural, there = np.empty_like(codes), np.empty_like(want)
        natural[:, perm], there[:, perm] = codes, want
        index = np.empty(k, np.int32)
        index[perm] = np.arange(k) // size
        stored = stream(zero.T, bits).view(f"u{word // 8}")
        if not v2 and bits != 3:
            stored = stored - stored.dtype.type(sum(1 << i for i in range(0, word, bits)))  # of whole words, borrowing
        elif not v2:
            stored = stream((zero.T - 1) % (1 << bits), bits)
        parts = {
            "qweight": np.ascontiguousarray(stream(natural, bits).view(f"i{word // 8}").T),
            "qzeros": stored.view(f"i{word // 8}"),
            "scales": np.ascontiguousarray(scale.T), "g_idx": index,
        }  # fmt: skip
        return parts, there

    return tensors


def gptq_p(bits: int, group: int, *, sym: bool) -> Tensors:
    """GPTQModel's planes of bits, with true zero points."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        if sym:
            codes, scale = symmetric(w, bits, group)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(w, bits, group)
        parts = {
            "qweight": np.ascontiguousarray(planar(codes, bits).T), "qzeros": planar(zero.T, bits),
            "scales": np.ascontiguousarray(scale.T), "g_idx": np.arange(w.shape[1], dtype=np.int32) // group,
        }  # fmt: skip
        return parts, values(codes, scale, zero)

    return tensors


def awq_gemm(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    codes, scale, zero = affine(w, 4, 128)

    def columns(rows: np.ndarray) -> np.ndarray:
        """[R, N] -> int32 [R, N / 8], nibble i of a word column ORDER[i] of its eight."""
        out = np.zeros((len(rows), rows.shape[1] // 8), np.uint32)
        for i, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            out |= rows[:, column::8].astype(np.uint32) << np.uint32(4 * i)
        return out.view(np.int32)

    parts = {"qweight": columns(codes.T), "qzeros": columns(zero.T), "scales": np.ascontiguousarray(scale.T)}
    return parts, values(codes, scale, zero)


def awq_gemv(group: int) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        codes, scale, zero = affine(w, 4, group)
        words = {128: 1, 64: 2, 32: 4}[group]
        words *= -(-scale.shape[1] // (8 * words))
        padded = np.zeros((len(w), 8 * words), np.float16)
        padded[:, : scale.shape[1]] = scale
        zeros = np.zeros((len(w), 8 * words), np.int64)
        zeros[:, : zero.shape[1]] = zero
        parts = {"qweight": stream(codes, 4), "qzeros": stream(zeros, 4), "scales": padded}
        return parts, values(codes, scale, zero)

    return tensors


def packed(bits: int, group: int | None, *, sym: bool = True, dtype: Any = np.float32, loose: bool = False,
           ordered: bool = False) -> Tensors:  # fmt: skip
    """compressed-tensors' pack-quantized; `loose` zero points have a byte each."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        k = w.shape[1]
        size = group or k
        perm = np.random.default_rng(k).permutation(k) if ordered else np.arange(k)
        if sym:
            codes, scale = symmetric(w[:, perm], bits, size, dtype)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(w[:, perm], bits, size, dtype)
        want = values(codes, scale, zero)
        natural, there = np.empty_like(codes), np.empty_like(want)
        natural[:, perm], there[:, perm] = codes, want
        parts = {"weight_packed": stream(natural, bits), "weight_scale": scale, "weight_shape": np.array(w.shape)}
        if not sym:
            low = (zero - (1 << (bits - 1))).astype(np.int8)
            parts["weight_zero_point"] = low if loose else np.ascontiguousarray(stream(zero.T, bits).T)
        if ordered:
            parts["weight_g_idx"] = np.empty(k, np.int32)
            parts["weight_g_idx"][perm] = np.arange(k) // size
        return parts, there

    return tensors


def int8(group: int | None, dtype: Any = np.float32) -> Tensors:
    """compressed-tensors' int-quantized."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        codes, scale = symmetric(w, 8, group or w.shape[1], dtype)
        return {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}, values(codes, scale, 128)

    return tensors


def fp8(strategy: str, end: str = "weight_scale", shape: tuple[int, ...] = (1,), static: bool = False) -> Tensors:
    """e4m3 numbers with a scale for the tensor, each row, or blocks of 128 x 128."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        n, k = w.shape
        rows, columns = {"tensor": (n, k), "channel": (1, k), "block": (128, 128)}[strategy]
        scale = np.empty((-(-n // rows), -(-k // columns)), np.float32)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                block = w[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                scale[i, j] = np.abs(block).max() / 448
        spread = np.repeat(np.repeat(scale, rows, axis=0)[:n], columns, axis=1)[:, :k]
        codes = (w / spread).astype(ml_dtypes.float8_e4m3fn)
        parts: Parts = {"weight": codes, end: scale.reshape(shape) if strategy == "tensor" else scale}
        if static:
            parts["input_scale"] = np.array([0.01], np.float32)
        return parts, codes.astype(np.float32) * spread

    return tensors


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e2m1(x: np.ndarray) -> np.ndarray:
    """The nearest codes of E2M1 numbers."""
    return np.abs(x[..., None] - E2M1).argmin(-1).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def mxfp4(codes_end: str = "weight_packed", scale_end: str = "weight_scale") -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = w.reshape(*w.shape[:-1], -1, 32)
        exponent = np.floor(np.log2(np.abs(groups).max(-1))) - 2
        scale = np.exp2(exponent).astype(np.float32)
        codes = e2m1(groups / scale[..., None])
        want = (E2M1[codes] * scale[..., None]).reshape(w.shape)
        stored = {codes_end: pairs(codes.reshape(w.shape)), scale_end: (exponent + 127).astype(np.uint8)}
        return stored, want

    return tensors


def nvfp4(codes_end: str, scale_end: str, global_end: str, *, divides: bool) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        whole = np.float32(448 * 6 / np.abs(w).max())
        if divides:  # a power of two, so that dividing by it and multiplying with its inverse are the same
            whole = np.exp2(np.floor(np.log2(whole))).astype(np.float32)
        factor = np.float32(1) / whole
        groups = w.reshape(len(w), -1, 16)
        scale = (np.abs(groups).max(-1) / 6 * whole).astype(ml_dtypes.float8_e4m3fn)
        each = scale.astype(np.float32)[..., None]
        codes = e2m1(groups / np.maximum(each * factor, 1e-20))
        parts = {
            codes_end: pairs(codes.reshape(w.shape)), scale_end: scale,
            global_end: np.array([whole if divides else factor], np.float32),
        }  # fmt: skip
        return parts, ((E2M1[codes] * each) * factor).reshape(w.shape)

    return tensors


def mlx(bits: int, group: int, dtype: Any = np.float16) -> Tensors:
    """MLX's affine mode: w = scale * code + bias."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = w.reshape(len(w), -1, group)
        low = groups.min(-1).astype(dtype)
        scale = ((groups.max(-1) - groups.min(-1)) / ((1 << bits) - 1)).astype(dtype)
        d, b = scale.astype(np.float32)[..., None], low.astype(np.float32)[..., None]
        codes = np.clip(np.round((groups - b) / d), 0, (1 << bits) - 1)
        parts = {
            "weight": stream(codes.reshape(w.shape).astype(np.int64), bits).view(np.uint32),
            "scales": scale,
            "biases": low,
        }
        return parts, (codes.astype(np.float32) * d + b).reshape(w.shape)

    return tensors


def mlx_mxfp4(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    parts, want = mxfp4("weight", "scales")(w)
    return {**parts, "weight": np.ascontiguousarray(parts["weight"]).view(np.uint32)}, want


def qqq(group: int) -> Tensors:
    """QQQ's own packing: its permutation of 1024 codes of a tile of 16 x 64, and the loops that fill words with it."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        n, k = w.shape
        per_row = group < 0
        codes, scale = symmetric(w, 4, k if per_row else group, np.float32)
        signed = codes - 8
        perm = []
        for i in range(32):
            for block in range(4):
                for column in (i // 4, i // 4 + 8):
                    lane = [(4 * (i % 4) + j) * 16 + column + 256 * block for j in range(4)]
                    perm += lane
        order = (
            np.array(perm).reshape(-1, 8)[:, [4, 0, 5, 1, 6, 2, 7, 3] if per_row else [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
        )
        tiles = (signed if per_row else codes).T.reshape(k // 16, 16, n // 16, 16).transpose(0, 2, 1, 3)
        tiles = tiles.reshape(k // 16, n * 16).reshape(-1, 1024)[:, order].reshape(k // 16, -1)
        words = np.zeros((k // 16, n * 2), np.uint32)
        for i in range(8):
            words |= (tiles[:, i::8].astype(np.int64) & 15).astype(np.uint32) << np.uint32(4 * i)
        single = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
        of_groups = [i + 8 * j for i in range(8) for j in range(8)]
        if per_row:
            channel = scale.T
            stored = (channel / 16).reshape(-1, 32)[:, single].reshape(1, n).astype(np.float32)
            return {"B": words.view(np.int32), "s_channel": stored, "s_group": np.zeros(0, np.float16)}, values(
                codes, scale, 8
            )
        want = signed * np.repeat(scale, group, axis=1)
        channel = (np.abs(want).max(axis=1) / 127).astype(np.float32)
        relative = (scale / channel[:, None]).astype(np.float16)
        stored = channel[None].reshape(-1, 32)[:, single].reshape(1, n)
        grouped = relative.T.reshape(-1, 64)[:, of_groups].reshape(k // group, n)
        whole = np.round(signed * np.repeat(relative.astype(np.float32), group, axis=1))
        return {"B": words.view(np.int32), "s_channel": stored, "s_group": grouped}, whole.astype(np.float32) * channel[
            :, None
        ]

    return tensors


@dataclass(frozen=True)
class Published:
    """A layout: what config.json says of it, how modules are packed, and the rows that they become."""

    tensors: Tensors
    config: dict[str, Any]
    rows: str
    key: str = "quantization_config"
    files: dict[str, Any] = field(default_factory=dict)


def compressed(format_: str, tokens: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors with one group."""
    arguments = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True,
                 "dynamic": False, "actorder": None, "observer": "minmax", "observer_kwargs": {},
                 "block_structure": None, **weights}  # fmt: skip
    group = {"targets": ["Linear"], "weights": arguments, "input_activations": tokens, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format_, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed", "version": "0.12.2",
    }  # fmt: skip


def gptq_config(**more: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.01,
        "static_groups": False, "true_sequential": True, "lm_head": False, "checkpoint_format": "gptq",
        "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:2.2.0"]}, **more,
    }  # fmt: skip


def gptqmodel_config(**more: Any) -> dict[str, Any]:
    """What GPTQModel 5 and later write into config.json and quantize_config.json."""
    return {
        "bits": 4, "group_size": 128, "desc_act": False, "lm_head": False, "method": "gptq", "quant_method": "gptq",
        "format": "gptq_p", "checkpoint_format": "gptq_p", "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:7.7.0"], "offload_to_disk": True, "mse": 0.0}, **more,
    }  # fmt: skip


def awq_config(**more: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None, **more}  # fmt: skip


BF16 = ml_dtypes.bfloat16
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
E4M3_TOKENS = {**TOKENS, "type": "float"}
CHANNEL = {"strategy": "channel", "group_size": None}
PUBLISHED: dict[str, Published] = {
    "gptq-v1": Published(gptq(4, 128, sym=True, v2=False), gptq_config(), "GROUP4_128_F16"),
    "gptq-v1-asym": Published(gptq(4, 64, sym=False, v2=False), gptq_config(sym=False, group_size=64),
                              "GROUP4_64_Z_F16"),
    "gptq-v2": Published(gptq(4, 32, sym=False, v2=True),
                         gptq_config(sym=False, group_size=32, checkpoint_format="gptq_v2"), "GROUP4_32_Z_F16"),
    "gptq-mislabelled": Published(gptq(4, 128, sym=True, v2=True), gptq_config(), "GROUP4_128_F16"),
    "gptq-2": Published(gptq(2, 64, sym=True, v2=False), gptq_config(bits=2, group_size=64), "GROUP2_64_F16"),
    "gptq-3": Published(gptq(3, 128, sym=False, v2=False), gptq_config(bits=3, sym=False), "GROUP3_128_Z_F16"),
    "gptq-8": Published(gptq(8, -1, sym=False, v2=False), gptq_config(bits=8, group_size=-1, sym=False),
                        "GROUP8_128_Z_F16"),
    "gptq-act-order": Published(gptq(4, 128, sym=True, v2=False, ordered=True), gptq_config(desc_act=True),
                                "GROUP4_128_F16"),
    "gptq-file": Published(gptq(4, 128, sym=True, v2=False), {}, "GROUP4_128_F16",
                           files={"quantize_config.json": {"bits": 4, "group_size": 128, "desc_act": False}}),
    "gptq-words": Published(gptq(4, 64, sym=False, v2=False, word=16),
                            gptq_config(sym=False, group_size=64, pack_dtype="int16"), "GROUP4_64_Z_F16"),
    **{f"gptq-p{bits}": Published(gptq_p(bits, 64, sym=sym), gptqmodel_config(bits=bits, group_size=64, sym=sym), rows)
       for bits, sym, rows in ((3, True, "GROUP3_64_F16"), (5, False, "GROUP5_64_Z_F16"), (6, True, "GROUP6_64_F16"),
                               (7, False, "GROUP8_64_Z_F16"))},
    "awq-gptqmodel": Published(
        awq_gemm,
        gptqmodel_config(quant_method="awq", method="awq", format="gemm", checkpoint_format="gemm", version="gemm",
                         zero_point=True), "GROUP4_128_Z_F16"),
    "awq-gemm": Published(awq_gemm, awq_config(), "GROUP4_128_Z_F16"),
    "awq-gemv": Published(awq_gemv(64), awq_config(version="gemv", group_size=64), "GROUP4_64_Z_F16"),
    "ct-w4a16": Published(packed(4, 128, dtype=BF16), compressed("pack-quantized", actorder="static"),
                          "GROUP4_128_BF16"),
    "ct-w4a16-asym": Published(packed(4, 32, sym=False, dtype=np.float16),
                               compressed("pack-quantized", group_size=32, symmetric=False), "GROUP4_32_Z_F16"),
    "ct-w4a16-loose": Published(packed(4, 128, sym=False, loose=True), compressed("pack-quantized", symmetric=False),
                                "GROUP4_128_Z_F32"),
    "ct-act-order": Published(packed(4, 128, ordered=True), compressed("pack-quantized", actorder="group"),
                              "GROUP4_128_F32"),
    "ct-w3a16": Published(packed(3, None, dtype=np.float16), compressed("pack-quantized", num_bits=3, **CHANNEL),
                          "GROUP3_128_F16"),
    "ct-w7a16": Published(packed(7, 64), compressed("pack-quantized", num_bits=7, group_size=64), "GROUP8_64_F32"),
    "ct-w8a16": Published(int8(None, BF16), compressed("int-quantized", num_bits=8, **CHANNEL), "GROUP8_128_BF16"),
    "ct-w8a8": Published(int8(None), compressed("int-quantized", TOKENS, num_bits=8, **CHANNEL), "INT8"),
    "ct-w8a8-static": Published(
        int8(None),
        compressed("int-quantized", {**TOKENS, "dynamic": False, "strategy": "tensor"}, num_bits=8, **CHANNEL), "INT8"),
    "ct-fp8-dynamic": Published(
        fp8("channel"), compressed("float-quantized", E4M3_TOKENS, num_bits=8, type="float", **CHANNEL), "FP8"),
    "ct-fp8": Published(
        fp8("tensor", static=True),
        compressed("float-quantized", {**E4M3_TOKENS, "dynamic": False, "strategy": "tensor"}, num_bits=8, type="float",
                   strategy="tensor", group_size=None), "FP8"),
    "ct-fp8-block": Published(
        fp8("block"),
        compressed("float-quantized", {**E4M3_TOKENS, "strategy": "group", "group_size": 128}, num_bits=8, type="float",
                   strategy="block", group_size=None, block_structure=[128, 128]), "FP8_128"),
    "ct-nvfp4": Published(
        nvfp4("weight_packed", "weight_scale", "weight_global_scale", divides=True),
        compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16), "NVFP4"),
    "fp8-block": Published(
        fp8("block", "weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "FP8_128"),
    "fp8-tensor": Published(
        fp8("tensor", static=True, shape=()),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "FP8"),
    "modelopt-fp8": Published(
        fp8("tensor", static=True, shape=()), {}, "FP8", files={"hf_quant_config.json": {
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}}),
    "modelopt-nvfp4": Published(
        nvfp4("weight", "weight_scale", "weight_scale_2", divides=False),
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*norm*"]},
        "NVFP4"),
    "qqq": Published(qqq(-1), {"quant_method": "qqq", "wbits": 4, "group_size": -1}, "INT4"),
    "qqq-g128": Published(qqq(128), {"quant_method": "qqq", "bits": 4, "group_size": 128}, "INT4_G128"),
    "mlx-4": Published(mlx(4, 64), {"group_size": 64, "bits": 4}, "GROUP4_64_M_F16", "quantization"),
    "mlx-3": Published(mlx(3, 32, np.float32), {"group_size": 32, "bits": 3, "mode": "affine"}, "GROUP3_32_M_F32",
                       "quantization"),
    "mlx-mxfp4": Published(mlx_mxfp4, {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "MXFP4", "quantization"),
    "ct-mxfp4": Published(mxfp4(), compressed("mxfp4-pack-quantized", type="float", group_size=32), "MXFP4"),
}  # fmt: skip
"""Layouts by name, each as a tool writes it."""
