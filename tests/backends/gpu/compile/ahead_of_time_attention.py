"""Attention, and what puts keys and values into caches."""

from __future__ import annotations

from dataclasses import replace

from octavo.backends.gpu.attention import cache_codec_kernel, decode_kernel, mla_kernel, rope_kernel, rotation
from octavo.backends.gpu.attention import kernel as attention_kernel
from octavo.backends.gpu.attention.attention_arguments import AttentionShape, PagedCache, PartialAttention
from octavo.backends.gpu.attention.prefill_hopper_launch import Factors, HalfCaches, PrefillShape
from octavo.backends.gpu.attention.rope_launch import CacheRows, HeadShape, Norms, RotaryAngles
from tests.backends.gpu.compile.ahead_of_time_types import Q8, ROWS, Kernels

ROPE = {"shape": HeadShape(128, 128, 64)}
ROTATION = RotaryAngles("*i32", "*fp32", "fp32")
FLOAT_ROWS = CacheRows("*fp16", None, "i32")
CACHE = PagedCache("*fp16", "*fp16", None, None, "i32", "*i32", "i32")
F32_CACHE = PagedCache("*fp32", "*fp32", None, None, "i32", "*i32", "i32")
Q8_CACHE = PagedCache("*i8", "*i8", "*fp16", "*fp16", "i32", "*i32", "i32")
DECODING = {"q": ROWS, "sinks": None, "out": None, "partial": PartialAttention("*fp32", "*fp32", "*fp32")}
DECODE = {"shape": AttentionShape(128, 128, 4, 16, 33)}
DECODE_Q8 = {"shape": AttentionShape(128, 128, 4, 16, 33, kind="q8_0")}
DECODE_INT4 = {"shape": AttentionShape(128, 128, 4, 16, 33, kind="int4")}
CODE_CACHE = PagedCache("*i8", "*i8", "*fp32", "*fp32", "i32", "*i32", "i32")
CODE_ROWS = CacheRows("*i8", "*fp32", "i32")
INT4_ROWS = CacheRows("*i8", "*fp16", "i32")


def of_codes(kind: str, scales: str) -> dict[str, dict[str, AttentionShape]]:
    """What attention to a cache of codes is compiled for, decoding and for prompts."""
    return {"decode": {"shape": AttentionShape(128, 128, 4, 16, 33, kind=kind, scales=scales)},
            "prefill": {"shape": AttentionShape(128, 128, 4, 64, kind=kind, scales=scales)}}


INT8, STATIC_INT8 = of_codes("int8", "dynamic"), of_codes("int8", "static")
FP8, STATIC_FP8 = of_codes("fp8", "dynamic"), of_codes("fp8", "static")
LATENT = AttentionShape(576, 512, 16, 16, 33, value_dim=512, block_r=64)
LATENT_CODES = {
    "int8": (replace(LATENT, kind="int8", scales="dynamic"), CODE_CACHE),
    "fp8": (replace(LATENT, kind="fp8", scales="dynamic"), CODE_CACHE),
    "int4": (replace(LATENT, kind="int4"), Q8_CACHE),
    "q8": (replace(LATENT, kind="q8_0"), Q8_CACHE),
}
LATENTS = {"latent": (LATENT, CACHE), "latent_f32": (LATENT, F32_CACHE),
           **{f"latent_{name}": case for name, case in LATENT_CODES.items()}}

ATTENTION: Kernels = {
    "decode": (decode_kernel.decode_kernel, DECODE, 4, {**DECODING, "cache": CACHE}),
    **{f"{step}_{name}": (kernel, shapes[step], 4, {**arguments, "cache": CODE_CACHE})
       for name, shapes in {"int8": INT8, "int8_static": STATIC_INT8, "fp8": FP8, "fp8_static": STATIC_FP8}.items()
       for step, kernel, arguments in (
           ("decode", decode_kernel.decode_kernel, DECODING),
           ("prefill", attention_kernel.prefill_kernel, {"q": ROWS, "sinks": None, "out": ROWS}))},
    **{f"set_rows_{kind}": (rope_kernel.set_rows_kernel, {"shape": HeadShape(128, 128, kind=kind)}, 1,
                            {"x": ROWS, "cache": CODE_ROWS}) for kind in ("int8", "fp8")},
    "rope_set_rows_int8_static": (
        rope_kernel.rope_set_rows_kernel, {"shape": HeadShape(128, 128, 64, kind="int8", static=True)}, 1, {
            "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": CODE_ROWS, "v_cache": CODE_ROWS, "rows": "*i64",
            "rotation": ROTATION, "norms": None, "out": ROWS,
        }),
    "rope_set_rows_int4": (rope_kernel.rope_set_rows_kernel, {"shape": HeadShape(128, 128, 64, kind="int4")}, 1, {
        "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": INT4_ROWS, "v_cache": INT4_ROWS,
        "rows": "*i64", "rotation": ROTATION, "norms": None, "out": ROWS,
    }),
    "prefill_int8_own": (attention_kernel.prefill_kernel,
                         {"shape": AttentionShape(128, 128, 4, 64, kind="int8", scales="dynamic", own_scales=True)}, 4,
                         {"q": ROWS, "cache": CODE_CACHE, "sinks": None, "out": ROWS}),
    "set_rows_int4": (rope_kernel.set_rows_kernel, {"shape": HeadShape(128, 128, kind="int4")}, 1,
                      {"x": ROWS, "cache": INT4_ROWS}),
    "decode_int4": (decode_kernel.decode_kernel, DECODE_INT4, 4, {**DECODING, "cache": Q8_CACHE}),
    "combine_int4": (decode_kernel.combine_kernel, DECODE_INT4, 4,
                     {**DECODING, "sinks": None, "out": ROWS, "quantized": None, "ordered": None}),
    "prefill_int4": (attention_kernel.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64, kind="int4")}, 4,
                     {"q": ROWS, "cache": Q8_CACHE, "sinks": None, "out": ROWS}),
    "decode_q8": (decode_kernel.decode_kernel, DECODE_Q8, 4, {**DECODING, "cache": Q8_CACHE}),
    "combine": (decode_kernel.combine_kernel, {"shape": AttentionShape(128, 128, 4, 16, 8)}, 4,
                {**DECODING, "sinks": "*fp32", "out": None, "quantized": Q8, "ordered": None}),
    "combine_many": (decode_kernel.combine_kernel, DECODE, 4,
                     {**DECODING, "sinks": None, "out": None, "quantized": Q8, "ordered": None}),
    "combine_parts": (decode_kernel.combine_kernel, {"shape": AttentionShape(512, 512, 16, 16, 128, part=64)}, 4,
                      {**DECODING, "sinks": None, "out": None, "quantized": Q8, "ordered": "*fp16"}),
    **{f"unpack_{kind}_{scales}": (
        cache_codec_kernel.unpack_kernel, {"shape": PrefillShape(128, 4, kind=kind, scales=scales)}, 4,
        {"cache": CODE_CACHE, "halves": HalfCaches("*fp16", "*fp16", "i32"),
         "factors": Factors("*fp32", "*fp32" if scales == "static" else None, "i32")})
       for kind in ("int8", "fp8") for scales in ("dynamic", "static")},
    "unpack_q8_0": (cache_codec_kernel.unpack_kernel, {"shape": PrefillShape(128, 4, kind="q8_0")}, 4,
                    {"cache": Q8_CACHE, "halves": HalfCaches("*fp16", "*fp16", "i32"), "factors": None}),
    "prefill": (attention_kernel.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64)}, 4,
                {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "prefill_alibi": (
        attention_kernel.prefill_kernel,
        {"shape": AttentionShape(64, 64, 1, 64, reach=1 << 30, alibi=1.0, sloped=8)}, 4,
        {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "decode_alibi": (decode_kernel.decode_kernel,
                     {"shape": AttentionShape(128, 128, 1, 16, 8, ahead=True, alibi=0.25, sloped=32)}, 4,
                     {**DECODING, "cache": CACHE}),
    "decode_f32": (decode_kernel.decode_kernel, DECODE, 4, {**DECODING, "cache": F32_CACHE}),
    "prefill_f32": (attention_kernel.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64)}, 4,
                    {"q": ROWS, "cache": F32_CACHE, "sinks": "*fp32", "out": ROWS}),
    "decode_f32_64": (decode_kernel.decode_kernel, {"shape": AttentionShape(64, 64, 4, 16, 33)}, 4,
                      {**DECODING, "cache": F32_CACHE}),
    "prefill_f32_64": (attention_kernel.prefill_kernel, {"shape": AttentionShape(64, 64, 4, 64)}, 4,
                       {"q": ROWS, "cache": F32_CACHE, "sinks": None, "out": ROWS}),
    "decode_f32_256": (decode_kernel.decode_kernel, {"shape": AttentionShape(256, 256, 4, 16, 33)}, 4,
                       {**DECODING, "cache": F32_CACHE}),
    "prefill_f32_256": (attention_kernel.prefill_kernel, {"shape": AttentionShape(256, 256, 4, 64)}, 4,
                        {"q": ROWS, "cache": F32_CACHE, "sinks": None, "out": ROWS}),
    "decode_512": (decode_kernel.decode_kernel, {"shape": AttentionShape(512, 512, 8, 16, 33)}, 4,
                   {**DECODING, "cache": CACHE}),
    "prefill_512": (attention_kernel.prefill_kernel, {"shape": AttentionShape(512, 512, 8, 64)}, 4,
                    {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "decode_window": (decode_kernel.decode_kernel,
                      {"shape": AttentionShape(128, 128, 4, 16, 8, window=512, cap=50.0)}, 4,
                      {**DECODING, "cache": CACHE}),
    "prefill_window": (attention_kernel.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64, window=512)}, 4,
                       {"q": ROWS, "cache": CACHE, "sinks": "*fp32", "out": ROWS}),
    "decode_chunks": (decode_kernel.decode_kernel,
                      {"shape": AttentionShape(128, 128, 4, 16, 8, window=512, chunked=True)}, 4,
                      {**DECODING, "cache": CACHE}),
    **{name: (mla_kernel.latent_kernel, {"shape": shape}, 8,
              {**DECODING, "cache": cache, "starts": None, "sinks": None, "out": None})
       for name, (shape, cache) in LATENTS.items()},
    **{f"{name}_many": (mla_kernel.latent_kernel, {"shape": shape}, 8,
                        {"q": ROWS, "cache": cache, "sinks": None, "out": ROWS, "partial": None})
       for name, (shape, cache) in LATENTS.items() if name != "latent_f32"},
    "latent_int8_own": (mla_kernel.latent_kernel, {"shape": replace(LATENT_CODES["int8"][0], own_scales=True)}, 8,
                        {"q": ROWS, "cache": CODE_CACHE, "sinks": None, "out": ROWS, "partial": None}),
    "combine_latent_int4": (decode_kernel.combine_kernel, {"shape": replace(LATENT_CODES["int4"][0], part=64)}, 4,
                            {**DECODING, "sinks": None, "out": ROWS, "quantized": None, "ordered": None}),
    **{f"rotate_heads{name}": (rotation.rotate_heads_kernel, {"SIZE": n, "BLOCK": block, "DIM": 576, "BACK": back}, 1,
                               {"x": ROWS, "out": ROWS})
       for name, n, block, back in (("", 576, 1024, False), ("_back", 512, 512, True))},
    **{f"set_rows_latent_{kind}": (rope_kernel.set_rows_kernel, {"shape": HeadShape(576, 1024, kind=kind)}, 1,
                                   {"x": ROWS, "cache": rows}) for kind, rows in (
                                       ("int8", CODE_ROWS), ("fp8", CODE_ROWS), ("int4", INT4_ROWS))},
    "rope": (rope_kernel.rope_kernel, ROPE, 1, {"x": ROWS, "out": ROWS, "rotation": ROTATION}),
    "set_rows": (rope_kernel.set_rows_kernel, {"shape": HeadShape(128, 128, kind="q8_0")}, 1,
                 {"x": ROWS, "cache": CacheRows("*i8", "*fp16", "i32")}),
    "rope_set_rows": (rope_kernel.rope_set_rows_kernel, ROPE, 1, {
        "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": FLOAT_ROWS, "v_cache": FLOAT_ROWS, "rows": "*i64",
        "rotation": ROTATION, "norms": Norms("*fp32", "*fp32", "fp32"), "out": ROWS,
    }),
}
