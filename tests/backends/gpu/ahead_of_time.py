"""Compiles kernels for GPUs that are not here; run as a program, it prints what it found as JSON, a row a kernel.

    python -m tests.backends.gpu.ahead_of_time KERNEL:LAYOUT:TARGET ...

It is a program because Triton's kernels are either compiled or interpreted by a process, never both.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import triton

from octavo.backends.gpu import attention_tiles, delta_tiles, dispatch
from octavo.backends.gpu.arguments import (
    ExpertIds,
    Matrix,
    PackedWeight,
    Q8Activation,
    Source,
    SplitK,
    StreamEnd,
    StreamToken,
)
from octavo.backends.gpu.attention_arguments import AttentionShape, PagedCache, PartialAttention
from octavo.backends.gpu.columns import ColumnGrid, ColumnShape, Stored
from octavo.backends.gpu.dispatch import DotShape, MatvecShape, MmaShape
from octavo.backends.gpu.experts import shape_of
from octavo.backends.gpu.kernels import (
    activations,
    argmax_topk,
    attention,
    attention_decode,
    attention_latent,
    attention_unpack,
    choice,
    clip_search,
    columns,
    delta_chunks,
    elementwise,
    experts,
    gemm_mixed_hopper,
    limits,
    mmq,
    rope,
    states,
    streams,
    token_codes,
)
from octavo.backends.gpu.kernels.dequantize import dequantize_kernel
from octavo.backends.gpu.kernels.grid_matvec import grid_matvec_kernel
from octavo.backends.gpu.kernels.matvec import matvec_kernel, matvec_pair_kernel
from octavo.backends.gpu.kernels.matvec_float import float_matvec_kernel
from octavo.backends.gpu.kernels.matvec_stream import matvec_stream_kernel
from octavo.backends.gpu.kernels.mmq_dot import mmq_dot_kernel
from octavo.backends.gpu.kernels.mmq_mma.kernel import mmq_mma_kernel
from octavo.backends.gpu.kernels.weight_only import weight_only_kernel
from octavo.backends.gpu.layout import Layout, layout_of, row_layout
from octavo.backends.gpu.matvec_stream import MatvecStreamShape
from octavo.backends.gpu.prefill_hopper import Factors, HalfCaches, PrefillShape
from octavo.backends.gpu.quantize import MmqBlocks, SampledRows
from octavo.backends.gpu.rope import CacheRows, HeadShape, Norms, Rotation
from octavo.backends.gpu.state_arguments import DeltaChunks, DeltaShape, Halves, Sequences
from octavo.formats.group import row_named
from tests.backends.gpu.ahead_of_time_case import TARGETS, Case, spills

KP = 1024
NAMES = {
    "x": "*fp32", "y": "*fp32", "out": "*fp32", "weight": "*fp32", "weights": "*fp32", "other": "*fp32", "a": "*fp32",
    "b": "*fp32", "q": "*fp32", "k": "*fp32", "v": "*fp32", "freqs": "*fp32", "q_norm": "*fp32", "k_norm": "*fp32",
    "d": "*fp32", "s": "*fp32", "s16": "*fp32", "xd": "*fp32", "xs": "*fp32", "xs16": "*fp32", "term0": "*fp32",
    "term1": "*fp32", "shares": "*fp32", "finished": "*i32", "sums": "*fp32",
    "floats": "*fp32", "scales": "*fp32",
    "halves": "*fp16", "codes": "*i8", "ids": "*i32", "rows": "*i32", "positions": "*i32", "starts": "*i32",
    "k_cache": "*fp16", "v_cache": "*fp16", "k_scales": "*fp16", "v_scales": "*fp16", "cache": "*fp16",
    "w": "*fp16", "table": "*fp32", "values": "*fp32", "minimum": "*i32", "small": "*i16", "rest": "*i8",
    "order": "*i32", "counts": "*i32", "eps": "fp32", "scale": "fp32", "cap": "fp32",
    "factor": "fp32",
}  # fmt: skip
BYTES_X = Q8Activation("*i8", *("*fp32",) * 3, "i32")
WORDS_X = BYTES_X._replace(codes="*i32")
STREAM_X = StreamToken(*WORDS_X, None, "fp32")
FINE_X = StreamToken("*i32", "*fp32", None, "*fp32", "i32", None, "fp32")
NORMED_X = FINE_X._replace(squares="*fp32")
NORM_END = StreamEnd("*i8", *("*fp32",) * 4)
SWIGLU_END = NORM_END._replace(squares=None, weight=None)
SOURCE = Source(Matrix("*fp32", "i32"), Matrix("*fp32", "i32"), "fp32")
CODES = Matrix("*i8", "i32")
Q8 = Q8Activation("*i8", "*fp32", "*fp32", "*fp32", "i32")
ROPE = {"shape": HeadShape(128, 128, 64)}
ROTATION = Rotation("*i32", "*fp32", "fp32")
FLOAT_ROWS = CacheRows("*fp16", None, "i32")
ROWS = Matrix("*fp32", "i32")
STREAM = {"x": STREAM_X, "terms": (ROWS,), "end": None}
SEQUENCES = Sequences("*i32", "*i32", "*i32", "i32")
CHUNKS = DeltaChunks(*(Halves("*bf16", "*bf16"),) * 4, "*fp32", "*fp32")
CACHE = PagedCache("*fp16", "*fp16", None, None, "i32", "*i32", "i32")
F32_CACHE = PagedCache("*fp32", "*fp32", None, None, "i32", "*i32", "i32")
Q8_CACHE = PagedCache("*i8", "*i8", "*fp16", "*fp16", "i32", "*i32", "i32")
DECODING = {"q": ROWS, "sinks": None, "out": None, "partial": PartialAttention("*fp32", "*fp32", "*fp32")}
DECODE = {"shape": AttentionShape(128, 128, 4, 16, 33)}
DECODE_Q8 = {"shape": AttentionShape(128, 128, 4, 16, 33, kind="q8_0")}
DECODE_INT4 = {"shape": AttentionShape(128, 128, 4, 16, 33, kind="int4")}
CODE_CACHE = PagedCache("*i8", "*i8", "*fp32", "*fp32", "i32", "*i32", "i32")
CODE_ROWS = CacheRows("*i8", "*fp32", "i32")
INT4_ROWS = CacheRows("*i8", "*fp16", "i32", "*fp32")


def of_codes(kind: str, scales: str) -> dict[str, dict[str, AttentionShape]]:
    """What attention to a cache of codes is compiled for, decoding and for prompts."""
    return {"decode": {"shape": AttentionShape(128, 128, 4, 16, 33, kind=kind, scales=scales)},
            "prefill": {"shape": AttentionShape(128, 128, 4, 64, kind=kind, scales=scales)}}  # fmt: skip


INT8, STATIC_INT8 = of_codes("int8", "dynamic"), of_codes("int8", "static")
FP8, STATIC_FP8 = of_codes("fp8", "dynamic"), of_codes("fp8", "static")
LATENT_Q8 = {"shape": AttentionShape(576, 512, 16, 16, 33, value_dim=512, block_r=64, kind="q8_0")}
LATENT = {"shape": AttentionShape(576, 512, 16, 16, 33, value_dim=512, block_r=64)}

SEARCHED = {"TOP": 15, "GROUP": 128, "GROUPS": 8}
SEARCH = dict.fromkeys(("shrinks", "chosen"), "*fp32")
COLUMNS = {"base": "*fp32", "matrix": "*fp32", "made": "*fp32",
           "grid": ColumnGrid(*("*fp32",) * 6, "*i32", "*fp32", "i32")}  # fmt: skip

KERNELS: dict[str, tuple[Any, dict[str, Any], int, dict[str, Any]]] = {
    # name: kernel, constants, warps, types that differ from NAMES; those that take a layout are in LAYOUTS
    "matvec": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(2, 32, 1, 1, early=True)}, 1,
               {"x": WORDS_X, "experts": None, "terms": (ROWS,)}),
    "matvec_pair": (matvec_pair_kernel,
                    {"TOKENS": 1, "shape": MatvecShape(4, 32, 1, 1), "other_shape": MatvecShape(2, 32, 1, 1)}, 1,
                    {"x": WORDS_X, "other_y": ROWS}),
    "matvec_stream": (matvec_stream_kernel, {"shape": MatvecStreamShape(1)}, 1, STREAM),
    "matvec_stream_wide": (matvec_stream_kernel, {"shape": MatvecStreamShape(1)}, 1, {**STREAM, "terms": ()}),
    "matvec_stream_deep": (matvec_stream_kernel, {"shape": MatvecStreamShape(2)}, 2, STREAM),
    "matvec_stream_deepest": (matvec_stream_kernel, {"shape": MatvecStreamShape(4)}, 4, STREAM),
    "matvec_stream_norm": (matvec_stream_kernel, {"shape": MatvecStreamShape(4, 2, 2, "rms_norm", True)}, 8,
                           {**STREAM, "x": FINE_X, "end": NORM_END}),
    "matvec_stream_swiglu": (matvec_stream_kernel, {"shape": MatvecStreamShape(1, 8, 2, "swiglu", True)}, 8,
                             {"x": NORMED_X, "terms": (), "y": None, "end": SWIGLU_END}),
    "matvec_id": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(8, 32, 1, 1)}, 1,
                  {"x": WORDS_X, "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "matvec_id_wide": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(16, 32, 2, 2)}, 2,
                       {"x": WORDS_X, "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "grid_matvec": (grid_matvec_kernel, {"TOKENS": 1}, 4,
                    {"x": WORDS_X, "experts": None, "terms": (ROWS,)}),
    "grid_matvec_id": (grid_matvec_kernel, {"TOKENS": 1}, 4,
                       {"x": WORDS_X, "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "grid_matvec_2": (grid_matvec_kernel, {"TOKENS": 2}, 4, {"x": WORDS_X, "experts": None, "terms": ()}),
    "mmq_dot": (mmq_dot_kernel, {"STRIDE": 8, "shape": DotShape(8, 32, 2, 2, 2)}, 2, {"terms": (ROWS, ROWS)}),
    "mmq_mma": (mmq_mma_kernel, {"STRIDE": 8, "shape": MmaShape(2, 1, 2, 1, 1, False)}, 2, {"terms": (ROWS,)}),
    "mmq_mma_32": (mmq_mma_kernel, {"STRIDE": 32, "shape": MmaShape(1, 4, 2, 2, 0, True)}, 2, {"terms": ()}),
    "weight_only": (weight_only_kernel, {"TOKENS": 2, "shape": MatvecShape(2, 32, 1, 1)}, 1,
                    {"x": Matrix("*i32", "i32")}),
    "dequantize": (dequantize_kernel, {"BLOCK_N": 4, "CHUNKS": 32}, 4,
                   {"rows": None, "out": Matrix("*fp16", "i32"), "k": "i32"}),
    "get_rows": (dequantize_kernel, {"BLOCK_N": 1, "CHUNKS": 32}, 1, {"out": ROWS, "k": "i32"}),
    "quantize": (activations.quantize_kernel, {"KIND": "rms_norm", "B": 4096}, 8,
                 {"source": SOURCE, "out": Q8, "ordered": None, "k": "i32"}),
    "quantize_ordered": (activations.quantize_kernel, {"KIND": "rms_norm", "B": 4096}, 8,
                         {"source": SOURCE, "out": Q8, "ordered": "*fp16", "k": "i32"}),
    "ordered": (activations.quantize_kernel, {"KIND": "swiglu", "B": 256}, 1,
                {"source": SOURCE, "out": None, "ordered": "*fp16", "k": "i32"}),
    "float": (activations.float_kernel, {"KIND": "swiglu", "B": 1024}, 4,
              {"source": SOURCE, "out": Matrix("*fp16", "i32"), "ordered": "*fp16", "k": "i32"}),
    "token_int8": (token_codes.token_codes_kernel, {"KIND": "rms_norm", "CODE": "int8", "B": 4096}, 16,
                   {"source": SOURCE, "codes": CODES, "k": "i32", "top": "fp32", "given": None}),
    "token_fp8": (token_codes.token_codes_kernel, {"KIND": "swiglu", "CODE": "e4m3", "B": 16384}, 16,
                  {"source": SOURCE, "codes": CODES, "k": "i32", "top": "fp32", "given": None}),
    "token_int8_static": (token_codes.token_codes_kernel, {"KIND": "rms_norm", "CODE": "int8", "B": 4096}, 16,
                          {"source": SOURCE, "codes": CODES, "k": "i32", "top": "fp32", "given": "fp32"}),
    "token_fp8_static": (token_codes.token_codes_kernel, {"KIND": "swiglu", "CODE": "e4m3", "B": 16384}, 16,
                         {"source": SOURCE, "codes": CODES, "k": "i32", "top": "fp32", "given": "fp32"}),
    "mmq": (mmq.quantize_mmq_kernel, {"LAYOUT": "DS4"}, 1,
            {"x": SampledRows("*fp32", "i32", "i32", "i32"), "out": MmqBlocks("*i8", "*fp32", "*fp16"), "rows": "i32",
             "k": "i32"}),
    "decode": (attention_decode.decode_kernel, DECODE, 4, {**DECODING, "cache": CACHE}),
    **{f"{step}_{name}": (kernel, shapes[step], 4, {**arguments, "cache": CODE_CACHE})
       for name, shapes in {"int8": INT8, "int8_static": STATIC_INT8, "fp8": FP8, "fp8_static": STATIC_FP8}.items()
       for step, kernel, arguments in (
           ("decode", attention_decode.decode_kernel, DECODING),
           ("prefill", attention.prefill_kernel, {"q": ROWS, "sinks": None, "out": ROWS}))},
    **{f"set_rows_{kind}": (rope.set_rows_kernel, {"shape": HeadShape(128, 128, kind=kind)}, 1,
                            {"x": ROWS, "cache": CODE_ROWS}) for kind in ("int8", "fp8")},
    "rope_set_rows_int8_static": (
        rope.rope_set_rows_kernel, {"shape": HeadShape(128, 128, 64, kind="int8", static=True)}, 1, {
            "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": CODE_ROWS, "v_cache": CODE_ROWS, "rows": "*i64",
            "rotation": ROTATION, "norms": None, "out": ROWS,
        }),
    "rope_set_rows_int4": (rope.rope_set_rows_kernel, {"shape": HeadShape(128, 128, 64, kind="int4")}, 1, {
        "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": INT4_ROWS, "v_cache": INT4_ROWS._replace(center=None),
        "rows": "*i64", "rotation": ROTATION, "norms": None, "out": ROWS,
    }),
    "prefill_int8_own": (attention.prefill_kernel,
                         {"shape": AttentionShape(128, 128, 4, 64, kind="int8", scales="dynamic", own_scales=True)}, 4,
                         {"q": ROWS, "cache": CODE_CACHE, "sinks": None, "out": ROWS}),
    "set_rows_int4": (rope.set_rows_kernel, {"shape": HeadShape(128, 128, kind="int4")}, 1,
                      {"x": ROWS, "cache": INT4_ROWS}),
    "decode_int4": (attention_decode.decode_kernel, DECODE_INT4, 4, {**DECODING, "cache": Q8_CACHE}),
    "combine_int4": (attention_decode.combine_kernel, DECODE_INT4, 4,
                     {**DECODING, "sinks": None, "out": ROWS, "quantized": None, "ordered": None}),
    "prefill_int4": (attention.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64, kind="int4")}, 4,
                     {"q": ROWS, "cache": Q8_CACHE, "sinks": None, "out": ROWS}),
    "decode_q8": (attention_decode.decode_kernel, DECODE_Q8, 4, {**DECODING, "cache": Q8_CACHE}),
    "combine": (attention_decode.combine_kernel, {"shape": AttentionShape(128, 128, 4, 16, 8)}, 4,
                {**DECODING, "sinks": "*fp32", "out": None, "quantized": Q8, "ordered": None}),
    "combine_many": (attention_decode.combine_kernel, DECODE, 4,
                     {**DECODING, "sinks": None, "out": None, "quantized": Q8, "ordered": None}),
    "combine_parts": (attention_decode.combine_kernel, {"shape": AttentionShape(512, 512, 16, 16, 128, part=64)}, 4,
                      {**DECODING, "sinks": None, "out": None, "quantized": Q8, "ordered": "*fp16"}),
    **{f"unpack_{kind}_{scales}": (
        attention_unpack.unpack_kernel, {"shape": PrefillShape(128, 4, kind=kind, scales=scales)}, 4,
        {"cache": CODE_CACHE, "halves": HalfCaches("*fp16", "*fp16", "i32"),
         "factors": Factors("*fp32", "*fp32" if scales == "static" else None, "i32")})
       for kind in ("int8", "fp8") for scales in ("dynamic", "static")},
    "unpack_q8_0": (attention_unpack.unpack_kernel, {"shape": PrefillShape(128, 4, kind="q8_0")}, 4,
                    {"cache": Q8_CACHE, "halves": HalfCaches("*fp16", "*fp16", "i32"), "factors": None}),
    "prefill": (attention.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64)}, 4,
                {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "prefill_alibi": (
        attention.prefill_kernel, {"shape": AttentionShape(64, 64, 1, 64, reach=1 << 30, alibi=1.0, sloped=8)}, 4,
        {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "decode_f32": (attention_decode.decode_kernel, DECODE, 4, {**DECODING, "cache": F32_CACHE}),
    "prefill_f32": (attention.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64)}, 4,
                    {"q": ROWS, "cache": F32_CACHE, "sinks": "*fp32", "out": ROWS}),
    "decode_f32_64": (attention_decode.decode_kernel, {"shape": AttentionShape(64, 64, 4, 16, 33)}, 4,
                      {**DECODING, "cache": F32_CACHE}),
    "prefill_f32_64": (attention.prefill_kernel, {"shape": AttentionShape(64, 64, 4, 64)}, 4,
                       {"q": ROWS, "cache": F32_CACHE, "sinks": None, "out": ROWS}),
    "decode_f32_256": (attention_decode.decode_kernel, {"shape": AttentionShape(256, 256, 4, 16, 33)}, 4,
                       {**DECODING, "cache": F32_CACHE}),
    "prefill_f32_256": (attention.prefill_kernel, {"shape": AttentionShape(256, 256, 4, 64)}, 4,
                        {"q": ROWS, "cache": F32_CACHE, "sinks": None, "out": ROWS}),
    "decode_512": (attention_decode.decode_kernel, {"shape": AttentionShape(512, 512, 8, 16, 33)}, 4,
                   {**DECODING, "cache": CACHE}),
    "prefill_512": (attention.prefill_kernel, {"shape": AttentionShape(512, 512, 8, 64)}, 4,
                    {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS}),
    "decode_window": (attention_decode.decode_kernel,
                      {"shape": AttentionShape(128, 128, 4, 16, 8, window=512, cap=50.0)}, 4,
                      {**DECODING, "cache": CACHE}),
    "prefill_window": (attention.prefill_kernel, {"shape": AttentionShape(128, 128, 4, 64, window=512)}, 4,
                       {"q": ROWS, "cache": CACHE, "sinks": "*fp32", "out": ROWS}),
    "decode_chunks": (attention_decode.decode_kernel,
                      {"shape": AttentionShape(128, 128, 4, 16, 8, window=512, chunked=True)}, 4,
                      {**DECODING, "cache": CACHE}),
    "latent": (attention_latent.latent_kernel, LATENT, 8,
               {**DECODING, "cache": CACHE, "starts": None, "sinks": None, "out": None}),
    "latent_q8": (attention_latent.latent_kernel, LATENT_Q8, 8,
                  {**DECODING, "cache": Q8_CACHE, "starts": None, "sinks": None, "out": None}),
    "latent_f32": (attention_latent.latent_kernel, LATENT, 8,
                   {**DECODING, "cache": F32_CACHE, "starts": None, "sinks": None, "out": None}),
    "latent_many": (attention_latent.latent_kernel, LATENT, 8,
                    {"q": ROWS, "cache": CACHE, "sinks": None, "out": ROWS, "partial": None}),
    "rope": (rope.rope_kernel, ROPE, 1, {"x": ROWS, "out": ROWS, "rotation": ROTATION}),
    "set_rows": (rope.set_rows_kernel, {"shape": HeadShape(128, 128, kind="q8_0")}, 1,
                 {"x": ROWS, "cache": CacheRows("*i8", "*fp16", "i32")}),
    "rope_set_rows": (rope.rope_set_rows_kernel, ROPE, 1, {
        "q": ROWS, "k": ROWS, "v": ROWS, "k_cache": FLOAT_ROWS, "v_cache": FLOAT_ROWS, "rows": "*i64",
        "rotation": ROTATION, "norms": Norms("*fp32", "*fp32", "fp32"), "out": ROWS,
    }),
    "sort": (experts.sort_kernel, {"BLOCK_M": 0, "B": 1024}, 4, {"tiles": None}),
    "sort_tiles": (experts.sort_kernel, {"BLOCK_M": 64, "B": 4096}, 16, {"tiles": "*i32"}),
    "gather_pairs": (experts.gather_kernel, {"KIND": "swiglu", "B": 1024}, 4,
                     {"source": SOURCE, "out": "*fp16", "k": "i32"}),
    "experts_few": (experts.experts_kernel, {"EXPERTS": 128}, 4, {"x": "*fp16", "experts": "i32"}),
    "experts": (experts.experts_kernel, {"EXPERTS": 128}, 4, {"x": "*fp16", "experts": "i32"}),
    "experts_wide": (experts.experts_kernel, {"EXPERTS": 128}, 8, {"x": "*fp16", "experts": "i32"}),
    "rms_norm": (elementwise.rms_norm_kernel, {"B": 128}, 1, {"k": "i32"}),
    "layer_norm": (elementwise.layer_norm_kernel, {"B": 128}, 1, {"bias": "*fp32", "k": "i32"}),
    "binary": (elementwise.binary_kernel, {"OP": "add", "B": 1024}, 4, {"k": "i32"}),
    "row": (elementwise.row_kernel, {"OP": "soft_max", "B": 128}, 1, {"k": "i32"}),
    "causal_conv": (states.causal_conv_kernel, {"SILU": True, "K": 4, "B": 128, "BT": 16}, 4,
                    {"x": ROWS, "taps": "*fp32", "state": "*fp32", "where": SEQUENCES, "out": ROWS}),
    "gated_delta_rule": (states.gated_delta_rule_kernel, {"shape": DeltaShape(32, 16, 128, 128, True, 32)}, 4, {
        **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS),
        **dict.fromkeys(("rates", "bias", "state"), "*fp32"), "where": SEQUENCES}),
    **{name: (kernel, {"shape": DeltaShape(32, 16, 128, 128, True, 32)}, 4, {
        **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS), "chunks": CHUNKS,
        **dict.fromkeys(("rates", "bias", "state"), "*fp32"), "where": SEQUENCES})
       for name, kernel in (("solve_delta", delta_chunks.solve_delta_kernel),
                            ("gated_delta_chunks", delta_chunks.gated_delta_chunks_kernel))},
    "clamped_swiglu": (elementwise.clamped_swiglu_kernel, {"B": 1024}, 4,
                       {"gate": "*fp32", "up": "*fp32", "slope": "fp32", "limit": "fp32", "k": "i32"}),
    "add_rows": (elementwise.add_rows_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "keep_groups": (elementwise.keep_groups_kernel, {"BEST": 2, "GROUPS": 8, "SIZE": 32}, 1, {}),
    "numbers": (elementwise.numbers_kernel, {"B": 16}, 1, {"out": "*i32"}),
    "copy_heads": (elementwise.copy_heads_kernel, {"B": 64}, 1, {"k": "i32"}),
    "scale_by_position": (elementwise.scale_by_position_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "xielu": (elementwise.xielu_kernel, {"B": 1024}, 4,
              {"k": "i32", **dict.fromkeys(("positive", "negative", "beta", "least"), "fp32")}),
    "keep_largest": (elementwise.keep_largest_kernel, {"B": 16384}, 16, {"spread": "fp32", "k": "i32"}),
    "predict_streams": (streams.predict_streams_kernel, {"S": 4, "B": 1024}, 4, {"coefs": "*fp32", "k": "i32"}),
    "correct_streams": (streams.correct_streams_kernel, {"S": 4, "B": 1024}, 4,
                        {"first": "*fp32", "coefs": "*fp32", "k": "i32"}),
    "add_to_others": (streams.add_to_others_kernel, {"S": 4, "B": 1024}, 4, {"row": "*fp32", "k": "i32"}),
    "columns": (columns.columns_kernel, {"shape": ColumnShape(-8.0, 7.0, 0, False, False)}, 4, COLUMNS),
    "columns_again": (columns.columns_kernel, {"shape": ColumnShape(0.0, 0.0, 4, True, True)}, 4, COLUMNS),
    "fit": (columns.fit_kernel, {"stored": Stored("f16"), "COLUMNS": 32, "ROWS": 32}, 4,
            dict.fromkeys(("along", "product", "slope", "moved", "number"), "*fp32")),
    **{f"clip_search_{kind}": (clip_search.clip_search_kernel, {"KIND": kind, "SCALE": "bf16"} | SEARCHED, 4, SEARCH)
       for kind in ("symmetric", "zero_point", "affine")},
    "as_large_as": (streams.as_large_as_kernel, {"S": 4, "B": 2048}, 8, {"like": "*fp32", "least": "fp32", "k": "i32"}),
    "top_k": (elementwise.top_k_kernel, {"SOFT_MAX": True, "B": 128}, 1, {"out": "*i32", "k": "i32"}),
    "gather": (elementwise.gather_kernel, {"B": 8}, 1, {}),
    "take_columns": (elementwise.take_columns_kernel, {"B": 1024}, 4,
                     {"order": "*i32", "ids": "*i32", "sharing": "i32", "k": "i32"}),
    "weighted_sum": (elementwise.weighted_sum_kernel, {"B": 1024}, 4, {}),
    "sum_experts": (elementwise.sum_experts_kernel, {"NORMALIZED": True, "EXPERTS": 128, "USED": 8, "B": 512}, 4,
                    {"logits": ROWS, "term": ROWS, "out": ROWS}),
    "copy_rows": (elementwise.copy_rows_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "float_matvec": (float_matvec_kernel, {"BLOCK_N": 4, "BLOCK_K": 512}, 4,
                     {"w": "*fp16", "x": ROWS, "experts": None, "terms": (), "y": ROWS, "k": "i32"}),
    "f16_scales": (gemm_mixed_hopper.scales_kernel, {"BLOCK_N": 64, "PAIRS": 16}, 4, {"out": "*i32"}),
    "reorder": (gemm_mixed_hopper.reorder_kernel, {"B": 2048}, 4, {"out": "*fp16"}),
    "read": (limits.read_kernel, {"BLOCK": 4096, "BLOCKS": 4}, 4, dict.fromkeys(("x", "out"), "*i32")),
    "sum_exp": (choice.sum_exp_kernel, {"B": 4096}, 4, {}),
    "log_sum": (choice.log_sum_kernel, {"B": 64}, 1, {}),
    "adjust": (choice.adjust_kernel, {"B": 128}, 4, {"places": "*i32", "changes": "*fp32"}),
    "mask": (choice.mask_kernel, {"B": 4096}, 4, {"masks": "*i32"}),
    "draw": (choice.draw_kernel, {"K": 64, "B": 64}, 1, {"found": "*i32", "settings": "*i32", "out": "*i32"}),
    "best_parts": (argmax_topk.best_parts_kernel, {"B": 2048}, 4, {"keys": "*i64", "bad": "*i32"}),
    "best_merge": (argmax_topk.best_merge_kernel, {"B": 128}, 1, {"keys": "*i64", "bad": "*i32", "out": "*i32"}),
    "group_maxima": (argmax_topk.group_maxima_kernel, {"SIZE": 64, "BLOCK": 32}, 4, {"keys": "*i64", "bad": "*i32"}),
    "rank_groups": (argmax_topk.rank_groups_kernel, {"K": 64, "BLOCK": 16, "STEP": 512}, 8,
                    {"keys": "*i64", "chosen": "*i64"}),
    "topk_of_groups": (argmax_topk.topk_of_groups_kernel, {"K": 64, "SIZE": 64, "MOST": 128, "BLOCKS": 75}, 8,
                       {"x": ROWS, "chosen": "*i64", "bad": "*i32", "scratch": "*i64", "out": "*i32"}),
}  # fmt: skip


PAIRS = {"experts_few": 512, "experts": 4096, "experts_wide": 16384}
"""Pairs of a token and one of 128 experts, which the shape is chosen for."""
LENGTHS = {
    "matvec_id_wide": 2048,
    "matvec_stream_wide": 4096,
    "matvec_stream_deep": 6144,
    "matvec_stream_deepest": 14336,
    "matvec_stream_norm": 14336,
    "matvec_stream_swiglu": 4096,
}
"""Values of a row, where not KP."""
GRID_ROWS = {"grid_matvec": 14336, "grid_matvec_2": 14336, "grid_matvec_id": 4096}
"""Rows that are multiplied, which the shape is chosen for."""


def case_of(name: str, layout: str, target: str) -> Case:
    """A kernel of KERNELS for weights of `layout`, "" for those that take none."""
    kernel, fixed, warps, types = KERNELS[name]
    gpu, asm = TARGETS[target]
    of_layout = _of_layout(layout, name == "mmq_dot", LENGTHS.get(name, KP)) if layout else {}
    fixed, types = dict(fixed), {**NAMES, **of_layout, **types}
    if name == "matvec_pair":
        types["other"] = _of_layout("Q6_K", False, KP)["w"]
    if name in PAIRS:
        fixed["shape"] = shape_of(PAIRS[name], 128, 2048, target)
        warps = fixed["shape"].warps
    if name in GRID_ROWS:
        fixed["shape"] = dispatch.grid_matvec(_layout(layout), GRID_ROWS[name], KP, fixed["TOKENS"], target)
        warps = fixed["shape"].warps
    if name == "mmq_dot" and gpu.backend == "hip":  # its tensor cores take 16 columns at least
        fixed |= {"STRIDE": 16, "shape": replace(fixed["shape"], block_m=16)}
        kind = _layout(layout)
        if target == "gfx1100" and (kind.group == 16 or kind.bits == 5 or kind.digits):
            fixed["shape"] = replace(fixed["shape"], block_n=16, stages=1)
    stages = 2
    if name.startswith(("decode", "prefill", "latent")):
        fixed["shape"], warps, stages = _attention(fixed["shape"], name, target)
    if name in ("solve_delta", "gated_delta_chunks"):
        fixed["shape"], warps, stages = _delta(fixed["shape"], name, target)
    fixed |= {
        key: value for key, value in (("ASM", asm), ("PDL", target in ("sm_90", "sm_100"))) if key in kernel.arg_names
    }
    if "AHEAD" in kernel.arg_names:
        fixed.setdefault("AHEAD", int(fixed["PDL"]))
    return Case(kernel, target, fixed, types, warps, stages)


def _attention(shape: AttentionShape, name: str, target: str) -> tuple[AttentionShape, int, int]:
    """The shape, the warps and the stages that attention is launched with."""
    exact, decodes = "f32" in name, name.startswith("decode")
    if name.startswith("latent"):
        tile = attention_tiles.latent(4096 if name == "latent_many" else shape.group, target, exact, "q8" in name)
    elif decodes:
        tile = attention_tiles.decode(shape.block_d, shape.group, target, exact, shape.kind)
    else:
        tile = attention_tiles.prefill(shape.block_d, target, exact, shape.kind)
    ahead = decodes and target in ("sm_90", "sm_100")
    shape = replace(
        shape, block_m=tile.block_m, block_n=tile.block_n, ahead=ahead, precision=tile.precision, part=tile.part
    )
    return shape, tile.warps, tile.stages


def _delta(shape: DeltaShape, name: str, target: str) -> tuple[DeltaShape, int, int]:
    """The shape, the warps and the stages that prompts go through the gated delta rule with."""
    tile = delta_tiles.delta_tile(512, shape.keys, target)
    assert tile is not None
    warps, stages = (tile.solving_warps, 1) if name == "solve_delta" else (tile.warps, tile.stages)
    return replace(shape, block_v=tile.block_v, chunk=tile.chunk, part=tile.part), warps, stages


def compiled(name: str, layout: str, target: str) -> dict[str, Any]:
    """Compile a kernel; a row of its name, its instructions of interest and its spills."""
    case = case_of(name, layout, target)
    made = triton.compile(case.source(), target=TARGETS[target][0], options=case.options)
    text = made.asm.get("ptx") or made.asm["amdgcn"]
    found = re.findall(r"dp4a|mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_dot4_i32_i\w+|v_mfma_\w+|v_wmma_\w+", text)
    return {"kernel": name, "layout": layout, "target": target, "instructions": sorted(set(found)),
            "spills": spills(made, text)}  # fmt: skip


def _layout(name: str) -> Layout:
    return layout_of(row_named(name), "exponent" if name == "MXFP4" else "f16")


def _of_layout(name: str, as_bytes: bool, kp: int) -> dict[str, Any]:
    """Types of a kernel's weights of this format, and of what it multiplies them with."""
    kind = _layout(name)
    bits, codes = kind.planes, "*i8" if as_bytes else "*i32"
    alone = kind.digits or (kind.two_level and not kind.has_min)
    scale = "*fp16" if alone else "*i16" if kind.scale == "exponent" else "*i32"
    planes = {f"codes{b}": codes if b in bits else None for b in (8, 4, 2, 1)}
    weight = PackedWeight(
        **planes, scale=scale, minimum=scale if kind.has_min and not kind.two_level and not kind.has_zero else None,
        small="*i16" if kind.two_level else None, rest="*i8" if kind.min_bits == 6 else None,
        table=("i32",) * 4 if kind.table else None, layout=row_layout(kind, kp),
    )  # fmt: skip
    if kind.grid is not None:
        upper, marks = "*i32" if kind.grid.more else None, "*i32" if kind.grid.marks else None
        weight = weight._replace(small="*i8", low="*i32", upper=upper, marks=marks, points="*i32")
    if kind.digits:
        weight = weight._replace(digits="*i32")
    return {"w": weight, "x": BYTES_X, "y": ROWS, "splits": SplitK("*fp32", "*i32")}


if __name__ == "__main__":
    print(json.dumps([compiled(*wanted.split(":")) for wanted in sys.argv[1:]]))
