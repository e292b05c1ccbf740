"""Kernels of rows, states, choices and the search for codes."""

from __future__ import annotations

from octavo.backends.gpu.columns import ColumnGrid, ColumnShape, Stored
from octavo.backends.gpu.kernels import (
    argmax_topk,
    choice,
    clip_search,
    columns,
    delta_chunks,
    elementwise,
    limits,
    scan_chunks,
    states,
    streams,
    wkv6,
    wkv7,
)
from octavo.backends.gpu.state_arguments import (
    ChannelShape,
    ConvShape,
    DeltaChunks,
    DeltaShape,
    Halves,
    ScanChunks,
    ScanShape,
    Sequences,
    WkvRows,
    WkvShape,
)
from tests.backends.gpu.ahead_of_time_types import ROWS, Kernels

SEQUENCES = Sequences("*i32", "*i32", "*i32", "i32")
CHUNKS = DeltaChunks(*(Halves("*bf16", "*bf16"),) * 4, "*fp32", "*fp32")
SCANS = ScanChunks(*(Halves("*bf16", "*bf16"),) * 3, "*fp32", "*fp32")
SEARCHED = {"TOP": 15, "GROUP": 128, "GROUPS": 8}
SEARCH = dict.fromkeys(("shrinks", "chosen"), "*fp32")
COLUMNS = {"base": "*fp32", "matrix": "*fp32", "made": "*fp32",
           "grid": ColumnGrid(*("*fp32",) * 6, "*i32", "*fp32", "i32")}  # fmt: skip

OTHERS: Kernels = {
    "rms_norm": (elementwise.rms_norm_kernel, {"B": 128}, 1, {"k": "i32"}),
    "layer_norm": (elementwise.layer_norm_kernel, {"B": 128}, 1, {"bias": "*fp32", "k": "i32"}),
    "binary": (elementwise.binary_kernel, {"OP": "add", "B": 1024}, 4, {"k": "i32"}),
    "row": (elementwise.row_kernel, {"OP": "soft_max", "B": 128}, 1, {"k": "i32"}),
    "causal_conv": (states.causal_conv_kernel, {"shape": ConvShape(4, 1, 128, 16, True)}, 4,
                    {"x": ROWS, **dict.fromkeys(("taps", "bias", "state"), "*fp32"), "where": SEQUENCES, "out": ROWS}),
    **{name: (kernel, {"shape": ScanShape(48, 1, keys, 64, 64)}, 4, {
        **dict.fromkeys(("x", "b", "c", "dt", "out"), ROWS), "chunks": SCANS,
        **dict.fromkeys(("rates", "bias", "skip", "state"), "*fp32"), "where": SEQUENCES})
       for name, kernel, keys in (("selective_scan", states.selective_scan_kernel, 256),
                                  ("score_scan", scan_chunks.score_scan_kernel, 128),
                                  ("selective_scan_chunks", scan_chunks.selective_scan_chunks_kernel, 128),
                                  ("selective_scan_chunks_256", scan_chunks.selective_scan_chunks_kernel, 256))},
    "channel_scan": (states.channel_scan_kernel, {"shape": ChannelShape(16, 5120, 32)}, 1, {
        **dict.fromkeys(("x", "b", "c", "dt", "out"), ROWS),
        **dict.fromkeys(("rates", "skip", "state"), "*fp32"), "where": SEQUENCES}),
    "token_shift": (states.causal_conv_kernel, {"shape": ConvShape(2, 6, 128, 16, False)}, 4,
                    {"x": ROWS, "bias": None, **dict.fromkeys(("taps", "state"), "*fp32"), "where": SEQUENCES,
                     "out": ROWS}),
    "wkv7": (wkv7.wkv7_kernel, {"shape": WkvShape(32, 64, True)}, 4, {
        "rows": WkvRows(*(ROWS,) * 5), **dict.fromkeys(("first", "gate", "out"), ROWS),
        **dict.fromkeys(("vectors", "state"), "*fp32"), "where": SEQUENCES, "eps": "fp32"}),
    "wkv6": (wkv6.wkv6_kernel, {"shape": WkvShape(32, 64, True)}, 4, {
        **dict.fromkeys((*"rwkv", "out"), ROWS), **dict.fromkeys(("vectors", "state"), "*fp32"),
        "where": SEQUENCES, "eps": "fp32"}),
    "gated_delta_rule": (states.gated_delta_rule_kernel, {"shape": DeltaShape(32, 16, 128, 128, True, 32)}, 4, {
        **dict.fromkeys(("q", "k", "v", "alpha", "beta", "out"), ROWS),
        **dict.fromkeys(("rates", "bias", "state"), "*fp32"), "where": SEQUENCES}),
    "gated_delta_rule_by_row": (states.gated_delta_rule_kernel, {
        "shape": DeltaShape(32, 32, 128, 128, False, 32, by_row=True)}, 4, {
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
    "floor_divide": (elementwise.floor_divide_kernel, {"B": 16}, 1, {"ids": "*i32", "out": "*i32", "by": "i32"}),
    "copy_heads": (elementwise.copy_heads_kernel, {"B": 64}, 1, {"k": "i32"}),
    "scale_by_position": (elementwise.scale_by_position_kernel, {"B": 1024}, 4, {"k": "i32"}),
    "clamp": (elementwise.clamp_kernel, {"B": 1024}, 4, {"k": "i32", "low": "fp32", "high": "fp32"}),
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
    "sparse_shares": (elementwise.sparse_shares_kernel, {"B": 16}, 1, {"tolerance": "fp32", "k": "i32"}),
    "take_columns": (elementwise.take_columns_kernel, {"B": 1024}, 4,
                     {"order": "*i32", "ids": "*i32", "sharing": "i32", "k": "i32"}),
    "weighted_sum": (elementwise.weighted_sum_kernel, {"B": 1024}, 4, {}),
    "sum_experts": (elementwise.sum_experts_kernel, {"NORMALIZED": True, "EXPERTS": 128, "USED": 8, "B": 512}, 4,
                    {"logits": ROWS, "term": ROWS, "out": ROWS}),
    "copy_rows": (elementwise.copy_rows_kernel, {"B": 1024}, 4, {"k": "i32"}),
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
