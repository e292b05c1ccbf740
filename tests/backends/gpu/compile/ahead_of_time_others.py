"""Kernels of rows, states, choices and the search for codes."""

from __future__ import annotations

from octavo.backends.gpu.calibration import clip_search_kernel as clip_search
from octavo.backends.gpu.calibration import gptq_columns_kernel
from octavo.backends.gpu.calibration.gptq_columns import ColumnGrid, ColumnShape, NumberType
from octavo.backends.gpu.collectives.all_reduce_kernel import all_reduce_kernel
from octavo.backends.gpu.device import bandwidth
from octavo.backends.gpu.matmul import lora_kernel
from octavo.backends.gpu.pointwise import expressions
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.backends.gpu.pointwise.expression_kernel import Operand, pointwise_kernel
from octavo.backends.gpu.recurrent import gated_delta_chunks_kernel, rwkv7_kernel
from octavo.backends.gpu.recurrent import kernel as recurrent
from octavo.backends.gpu.recurrent import mamba2_chunks_kernel as mamba2_chunks
from octavo.backends.gpu.recurrent.scan_arguments import (
    ChannelShape,
    ChunkScores,
    ConvShape,
    ScanShape,
    Sequences,
    SplitFloats,
    WkvShape,
)
from octavo.backends.gpu.sampling import logits_kernel, topk_kernel
from octavo.graph.pointwise import POINTWISE
from tests.backends.gpu.compile.ahead_of_time_types import ROWS, Kernels

VALUES = Operand("*fp32", "i32", "i32", 1)
SEQUENCES = Sequences("*i32", "*i32", "*i32", "i32")
CHUNKS = ChunkScores(*(SplitFloats("*bf16", "*bf16"),) * 4, "*fp32", "*fp32")
SCANS = CHUNKS._replace(ut=None)
SEARCHED = {"TOP": 15, "GROUP": 128, "GROUPS": 8}
SEARCH = dict.fromkeys(("shrinks", "chosen"), "*fp32")
COLUMNS = {"base": "*fp32", "matrix": "*fp32", "made": "*fp32",
           "grid": ColumnGrid(*("*fp32",) * 6, "*i32", "*fp32", "i32")}

OTHERS: Kernels = {
    "rms_norm": (pointwise.rms_norm_kernel, {"B": 128}, 1, {"k": "i32"}),
    "layer_norm": (pointwise.layer_norm_kernel, {"B": 128}, 1, {"bias": "*fp32", "k": "i32"}),
    **{op.name: (pointwise_kernel, {"EXPRESSION": getattr(expressions, op.version), "B": 1024}, 4, {
        "inputs": tuple(VALUES._replace(data="*i32" if name in op.integers else "*fp32") for name in op.inputs),
        "numbers": tuple("i32" if isinstance(number, int) else "fp32" for number in op.numbers.values()),
        "out": VALUES._replace(data="*i32" if op.inputs[0] in op.integers else "*fp32"), "rows": "i32", "k": "i32"})
       for op in POINTWISE.values()},
    "row": (pointwise.row_kernel, {"OP": "soft_max", "B": 128}, 1, {"k": "i32", "spread": "fp32"}),
    "causal_conv": (recurrent.causal_conv_kernel, {"shape": ConvShape(4, 1, 128, 16, True)}, 4,
                    {"x": ROWS, **dict.fromkeys(("taps", "bias", "state"), "*fp32"), "where": SEQUENCES, "out": ROWS}),
    **{name: (kernel, {"shape": ScanShape(48, 1, keys, 64, 64)}, 4, {
        **dict.fromkeys(("x", "b", "c", "dt", "out"), ROWS), "chunks": SCANS,
        **dict.fromkeys(("ssm_a", "dt_bias", "ssm_d", "state"), "*fp32"), "where": SEQUENCES})
       for name, kernel, keys in (("selective_scan", recurrent.selective_scan_kernel, 256),
                                  ("score_scan", mamba2_chunks.score_scan_kernel, 128),
                                  ("selective_scan_chunks", mamba2_chunks.selective_scan_chunks_kernel, 128),
                                  ("selective_scan_chunks_256", mamba2_chunks.selective_scan_chunks_kernel, 256))},
    "channel_scan": (recurrent.channel_scan_kernel, {"shape": ChannelShape(16, 5120, 32)}, 1, {
        **dict.fromkeys(("x", "b", "c", "dt", "out"), ROWS),
        **dict.fromkeys(("ssm_a", "ssm_d", "state"), "*fp32"), "where": SEQUENCES}),
    "token_shift": (recurrent.causal_conv_kernel, {"shape": ConvShape(2, 6, 128, 16, False)}, 4,
                    {"x": ROWS, "bias": None, **dict.fromkeys(("taps", "state"), "*fp32"), "where": SEQUENCES,
                     "out": ROWS}),
    "wkv7": (rwkv7_kernel.wkv7_kernel, {"shape": WkvShape(32, 64, True)}, 4, {
        **dict.fromkeys((*"rwkva", "first", "gate", "out"), ROWS),
        **dict.fromkeys(("vectors", "state"), "*fp32"), "where": SEQUENCES, "eps": "fp32"}),
    "gated_delta_rule": (recurrent.gated_delta_rule_kernel, {"shape": ScanShape(32, 16, 128, 128, 32, True)}, 4, {
        **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS),
        **dict.fromkeys(("ssm_a", "dt_bias", "state"), "*fp32"), "where": SEQUENCES}),
    "gated_delta_rule_by_row": (recurrent.gated_delta_rule_kernel, {
        "shape": ScanShape(32, 32, 128, 128, 32, by_row=True)}, 4, {
            **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS),
            **dict.fromkeys(("ssm_a", "dt_bias", "state"), "*fp32"), "where": SEQUENCES}),
    **{name: (kernel, {"shape": ScanShape(32, 16, 128, 128, 32, True)}, 4, {
        **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS), "chunks": CHUNKS,
        **dict.fromkeys(("ssm_a", "dt_bias", "state"), "*fp32"), "where": SEQUENCES})
       for name, kernel in (("solve_delta", gated_delta_chunks_kernel.solve_delta_kernel),
                            ("gated_delta_chunks", gated_delta_chunks_kernel.gated_delta_chunks_kernel))},
    **{f"lora_down_{m}": (lora_kernel.lora_down_kernel, {
        "SPLIT": split, "BLOCK_M": m, "BLOCK_R": 16, "R": 16}, 4,
        {"x": ROWS, "a": "*fp16", "ranks": "*i32", "h": "*fp32", "k": "i32"}) for m, split in ((16, 8), (64, 1))},
    **{f"lora_up_{m}": (lora_kernel.lora_up_kernel, {
        "SPLIT": split, "BLOCK_M": m, "BLOCK_N": 64, "R": 16}, 4,
        {"h": "*fp32", "b": "*fp16", "ranks": "*i32", "y": ROWS, "sizes": ("i32", "i32", "i32")})
       for m, split in ((16, 8), (64, 1))},
    "add_rows": (pointwise.add_rows_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "keep_groups": (pointwise.keep_groups_kernel, {"BEST": 2, "GROUPS": 8, "SIZE": 32}, 1, {}),
    "numbers": (pointwise.numbers_kernel, {"B": 16}, 1, {"out": "*i32"}),
    "copy_heads": (pointwise.copy_heads_kernel, {"B": 64}, 1, {"k": "i32"}),
    "keep_largest": (pointwise.row_kernel, {"OP": "keep_largest", "B": 16384}, 16, {"spread": "fp32", "k": "i32"}),
    "columns": (gptq_columns_kernel.columns_kernel, {"shape": ColumnShape(-8.0, 7.0, 0, False, False)}, 4, COLUMNS),
    "columns_again": (gptq_columns_kernel.columns_kernel, {"shape": ColumnShape(0.0, 0.0, 4, True, True)}, 4, COLUMNS),
    "fit": (gptq_columns_kernel.fit_kernel, {"stored": NumberType("f16"), "COLUMNS": 32, "ROWS": 32}, 4,
            dict.fromkeys(("along", "product", "slope", "moved", "number"), "*fp32")),
    **{f"clip_search_{kind}": (clip_search.clip_search_kernel, {"KIND": kind, "SCALE": "bf16"} | SEARCHED, 4, SEARCH)
       for kind in ("symmetric", "zero_point", "affine")},
    "as_large_as": (pointwise.as_large_as_kernel, {"S": 4, "B": 2048}, 8,
                    {"like": "*fp32", "least": "fp32", "k": "i32"}),
    "top_k": (pointwise.top_k_kernel, {"SOFT_MAX": True, "B": 128}, 1, {"out": "*i32", "k": "i32"}),
    "gather": (pointwise.gather_kernel, {"B": 8}, 1, {}),
    "sparse_shares": (pointwise.sparse_shares_kernel, {"B": 16}, 1, {"tolerance": "fp32", "k": "i32"}),
    "take_columns": (pointwise.take_columns_kernel, {"B": 1024}, 4,
                     {"order": "*i32", "ids": "*i32", "sharing": "i32", "k": "i32"}),
    "weighted_sum": (pointwise.weighted_sum_kernel, {"B": 1024}, 4, {"sums": "i32"}),
    "sum_experts": (pointwise.sum_experts_kernel, {"NORMALIZED": True, "EXPERTS": 128, "USED": 8, "B": 512}, 4,
                    {"rows": "*fp32", "logits": ROWS, "term": ROWS, "out": ROWS}),
    "copy_rows": (pointwise.copy_rows_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "read": (bandwidth.read_kernel, {"BLOCK": 4096, "BLOCKS": 4}, 4, dict.fromkeys(("x", "out"), "*i32")),
    "sum_exp": (logits_kernel.sum_exp_kernel, {"B": 4096}, 4, {}),
    "log_sum": (logits_kernel.log_sum_kernel, {"B": 64}, 1, {}),
    "adjust": (logits_kernel.adjust_kernel, {"B": 128}, 4, {"places": "*i32", "changes": "*fp32"}),
    "mask": (logits_kernel.mask_kernel, {"B": 4096}, 4, {"masks": "*i32"}),
    "local_places": (logits_kernel.local_places_kernel, {"B": 128}, 1, {"places": "*i32", "out": "*i32"}),
    "merge_ranks": (topk_kernel.merge_ranks_kernel, {"K": 64, "B": 64}, 8,
                    {"x": "*i32", "firsts": ("i32", "i32"), "out": "*i32"}),
    "largest_magnitude": (pointwise.largest_magnitude_kernel, {"B": 4096}, 8, {"k": "i32"}),
    "all_reduce": (all_reduce_kernel, {"RANK": 1, "RANKS": 2, "B": 1024}, 4,
                   {"terms": ("*fp32",), "inboxes": ("i64", "i64"), "calls": "*i32"}),
    "draw": (logits_kernel.draw_kernel, {"K": 64, "B": 64}, 1, {"found": "*i32", "settings": "*i32", "out": "*i32"}),
    "best_parts": (topk_kernel.best_parts_kernel, {"B": 2048}, 4, {"keys": "*i64", "bad": "*i32"}),
    "best_merge": (topk_kernel.best_merge_kernel, {"B": 128}, 1, {"keys": "*i64", "bad": "*i32", "out": "*i32"}),
    "group_maxima": (topk_kernel.group_maxima_kernel, {"SIZE": 64, "BLOCK": 32}, 4, {"keys": "*i64", "bad": "*i32"}),
    "rank_groups": (topk_kernel.rank_groups_kernel, {"K": 64, "BLOCK": 16, "STEP": 512}, 8,
                    {"keys": "*i64", "chosen": "*i64"}),
    "topk_of_groups": (topk_kernel.topk_of_groups_kernel, {"K": 64, "SIZE": 64, "MOST": 128, "BLOCKS": 75}, 8,
                       {"x": ROWS, "chosen": "*i64", "bad": "*i32", "scratch": "*i64", "out": "*i32"}),
}
