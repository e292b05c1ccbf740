"""Products with weights, and what makes and sorts activations for them."""

from __future__ import annotations

from octavo.backends.gpu.launch.arguments import (
    Biases,
    ExpertIds,
    FusedEpilogue,
    Matrix,
    Q8Activation,
    Q8Token,
    SplitK,
)
from octavo.backends.gpu.matmul import activations, activations_per_token
from octavo.backends.gpu.matmul.dequantize_kernel import dequantize_kernel
from octavo.backends.gpu.matmul.experts import kernel as experts
from octavo.backends.gpu.matmul.experts import mma_kernel as experts_mma
from octavo.backends.gpu.matmul.experts import routing_kernel as routing
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsMmaShape, ExpertsShape
from octavo.backends.gpu.matmul.matvec.float8_kernel import float8_matvec_kernel
from octavo.backends.gpu.matmul.matvec.float_kernel import float_matvec_kernel
from octavo.backends.gpu.matmul.matvec.kernel import matvec_kernel, matvec_pair_kernel
from octavo.backends.gpu.matmul.matvec.matvec_shape import MatvecShape
from octavo.backends.gpu.matmul.matvec_persistent.kernel import matvec_persistent_kernel
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape
from octavo.backends.gpu.matmul.mmq import quantize_kernel
from octavo.backends.gpu.matmul.mmq.dot_kernel import mmq_dot_kernel
from octavo.backends.gpu.matmul.mmq.mma_kernel import mmq_mma_kernel
from octavo.backends.gpu.matmul.mmq.mmq_shapes import DotShape, MmaShape
from octavo.backends.gpu.matmul.mmq.quantize import MmqBlocks, SampledRows
from octavo.backends.gpu.matmul.w4a16 import hopper_kernel as w4a16_hopper
from octavo.backends.gpu.matmul.w4a16.weight_only_kernel import weight_only_kernel
from octavo.backends.gpu.matmul.w8a8.row_matvec_kernel import row_matvec_kernel
from octavo.backends.gpu.matmul.w8a8.row_scales import RowMatvecShape
from octavo.backends.gpu.matmul.w8a8.w4a8_mma import W4A8MmaShape
from octavo.backends.gpu.matmul.w8a8.w4a8_mma_kernel import w4a8_mma_kernel
from octavo.backends.gpu.pointwise.expressions import expression_of
from tests.backends.gpu.compile.ahead_of_time_types import Q8, ROWS, SOURCE, Kernels

SWIGLU, CLAMPED = expression_of("swiglu"), expression_of("clamped_swiglu")
GATED = SOURCE._replace(biases=Biases("*fp32", "*fp32", "*i32"), numbers=("fp32", "fp32"))
BYTES_X = Q8Activation("*i8", *("*fp32",) * 3, "i32")
WORDS_X = BYTES_X._replace(codes="*i32")
PERSISTENT_X = Q8Token(*WORDS_X, None, "fp32")
FINE_X = Q8Token("*i32", "*fp32", None, "*fp32", "i32", None, "fp32")
NORMED_X = FINE_X._replace(squares="*fp32")
NORM_EPILOGUE = FusedEpilogue("*i8", *("*fp32",) * 4)
SWIGLU_EPILOGUE = NORM_EPILOGUE._replace(squares=None, weight=None)
CODES = Matrix("*i8", "i32")
PERSISTENT = {"x": PERSISTENT_X, "terms": (ROWS,), "epilogue": None}

TOKEN = {"source": SOURCE, "codes": CODES, "k": "i32", "top": "fp32", "given": None, "least": None, "maxima": None}
PRODUCTS: Kernels = {
    "matvec": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(2, 32, 1, 1, early=True)}, 1,
               {"x": WORDS_X, "experts": None, "terms": (ROWS,)}),
    "matvec_pair": (matvec_pair_kernel,
                    {"TOKENS": 1, "shape": MatvecShape(4, 32, 1, 1), "other_shape": MatvecShape(2, 32, 1, 1)}, 1,
                    {"x": WORDS_X, "other_y": ROWS}),
    "matvec_persistent": (matvec_persistent_kernel, {"shape": PersistentShape(1)}, 1, PERSISTENT),
    "matvec_persistent_wide": (matvec_persistent_kernel, {"shape": PersistentShape(1)}, 1, {**PERSISTENT, "terms": ()}),
    "matvec_persistent_deep": (matvec_persistent_kernel, {"shape": PersistentShape(2)}, 2, PERSISTENT),
    "matvec_persistent_deepest": (matvec_persistent_kernel, {"shape": PersistentShape(4)}, 4, PERSISTENT),
    "matvec_persistent_planes": (matvec_persistent_kernel, {"shape": PersistentShape(8)}, 8, PERSISTENT),
    "matvec_persistent_norm": (matvec_persistent_kernel, {"shape": PersistentShape(4, 2, 2, "rms_norm", True)}, 8,
                               {**PERSISTENT, "x": FINE_X, "epilogue": NORM_EPILOGUE}),
    "matvec_persistent_swiglu": (matvec_persistent_kernel, {"shape": PersistentShape(1, 8, 2, "swiglu", True)}, 8,
                                 {"x": NORMED_X, "terms": (), "y": None, "epilogue": SWIGLU_EPILOGUE}),
    "matvec_id": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(8, 32, 1, 1)}, 1,
                  {"x": WORDS_X, "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "matvec_id_wide": (matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(16, 32, 2, 2)}, 2,
                       {"x": WORDS_X, "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "mmq_dot": (mmq_dot_kernel, {"STRIDE": 8, "shape": DotShape(8, 32, 2, 2, 2)}, 2, {"terms": (ROWS, ROWS)}),
    "mmq_mma": (mmq_mma_kernel, {"STRIDE": 8, "shape": MmaShape(2, 1, 2, 1, 1, False)}, 2, {"terms": (ROWS,)}),
    "mmq_mma_32": (mmq_mma_kernel, {"STRIDE": 32, "shape": MmaShape(1, 4, 2, 2, 0, True)}, 2, {"terms": ()}),
    "weight_only": (weight_only_kernel, {"TOKENS": 2, "shape": MatvecShape(2, 32, 1, 1)}, 1,
                    {"x": Matrix("*i32", "i32")}),
    "float8_matvec": (float8_matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(4, 64, 1, 2)}, 2,
                      {"x": "*fp32", "experts": None, "terms": (ROWS,)}),
    "float8_matvec_4": (float8_matvec_kernel, {"TOKENS": 4, "shape": MatvecShape(2, 64, 1, 2)}, 2,
                        {"x": "*fp32", "experts": None, "terms": ()}),
    "float8_matvec_id": (float8_matvec_kernel, {"TOKENS": 1, "shape": MatvecShape(4, 32, 1, 1)}, 1,
                         {"x": "*fp32", "experts": ExpertIds("*i32", "i32"), "terms": ()}),
    "dequantize": (dequantize_kernel, {"BLOCK_N": 4, "CHUNKS": 32}, 4,
                   {"rows": None, "out": Matrix("*fp16", "i32"), "k": "i32"}),
    "get_rows": (dequantize_kernel, {"BLOCK_N": 1, "CHUNKS": 32}, 1, {"out": ROWS, "k": "i32"}),
    "quantize": (activations.quantize_kernel, {"KIND": "rms_norm", "B": 4096}, 8,
                 {"source": SOURCE, "out": Q8, "ordered": None, "k": "i32"}),
    "quantize_ordered": (activations.quantize_kernel, {"KIND": "rms_norm", "B": 4096}, 8,
                         {"source": SOURCE, "out": Q8, "ordered": "*fp16", "k": "i32"}),
    "ordered": (activations.quantize_kernel, {"KIND": SWIGLU, "B": 256}, 1,
                {"source": SOURCE, "out": None, "ordered": "*fp16", "k": "i32"}),
    **{f"row_matvec_{kind}{end}": (
        row_matvec_kernel, {"TOKENS": tokens, "shape": RowMatvecShape(kind, 4096, block_n, 256, 2)}, 2,
        {"w": "*i32", "scales": "*fp32", "groups": "*fp16" if kind == "int4_groups" else None, "x": "*i32",
         "x_scales": "*fp32", "terms": (ROWS, ROWS), "y": ROWS},
    ) for kind, rows, most in (("int8", 8, 2), ("int4", 8, 2), ("int4_groups", 8, 2), ("fp8", 4, 2))
        for tokens, end, block_n in ((1, "", rows), (most, "_few", 4))},
    **{f"w4a8_mma{groups}{tokens}": (
        w4a8_mma_kernel, {"shape": W4A8MmaShape(4096, 1, tokens // 8, 8)}, 8,
        {"w": "*i32", "scales": "*fp32", "groups": "*fp16" if groups else None, "x": "*i32", "x_scales": "*fp32",
         "terms": (ROWS, ROWS), "y": ROWS},
    ) for groups in ("_", "_groups_") for tokens in (8, 16)},
    "float_planes": (activations.float_kernel, {"KIND": "rms_norm", "B": 4096, "PLANES": 4}, 8,
                     {"source": SOURCE, "out": ROWS, "ordered": None, "k": "i32"}),
    "float": (activations.float_kernel, {"KIND": SWIGLU, "B": 1024, "PLANES": 1}, 4,
              {"source": SOURCE, "out": Matrix("*fp16", "i32"), "ordered": "*fp16", "k": "i32"}),
    "token_int8": (activations_per_token.token_codes_kernel,
                   {"KIND": "rms_norm", "CODE": "int8", "B": 4096, "PARTS": 1}, 16, {**TOKEN, "least": "*fp32"}),
    "token_fp8": (activations_per_token.token_codes_kernel,
                  {"KIND": SWIGLU, "CODE": "e4m3", "B": 16384, "PARTS": 1}, 16, TOKEN),
    "token_maxima": (activations_per_token.token_maxima_kernel, {"KIND": SWIGLU, "B": 1024}, 4,
                     {"source": SOURCE, "maxima": "*i32", "k": "i32"}),
    "token_codes_part": (activations_per_token.token_codes_kernel,
                         {"KIND": SWIGLU, "CODE": "int8", "B": 1024, "PARTS": 14}, 4, {**TOKEN, "maxima": "*i32"}),
    "token_int8_static": (activations_per_token.token_codes_kernel,
                          {"KIND": "rms_norm", "CODE": "int8", "B": 4096, "PARTS": 1}, 16, {**TOKEN, "given": "fp32"}),
    "token_fp8_static": (activations_per_token.token_codes_kernel,
                         {"KIND": SWIGLU, "CODE": "e4m3", "B": 16384, "PARTS": 1}, 16, {**TOKEN, "given": "fp32"}),
    "mmq": (quantize_kernel.quantize_mmq_kernel, {"LAYOUT": "DS4"}, 1,
            {"x": SampledRows("*fp32", "i32", "i32", "i32"), "out": MmqBlocks("*i8", "*fp32", "*fp16"), "rows": "i32",
             "k": "i32"}),
    "slots": (experts_mma.slot_kernel, {"SLOTS": 8, "EXPERTS": 128, "B": 1024}, 4,
              {"slots": "*i32", "pairs": "*i32", "tiles": "*i32"}),
    "quantize_slots": (experts_mma.quantize_slots_kernel, {"KIND": SWIGLU, "B": 256}, 1,
                       {"source": SOURCE, "slots": "*i32", "out": Q8, "k": "i32"}),
    "quantize_gated_slots": (experts_mma.quantize_slots_kernel, {"KIND": CLAMPED, "B": 256}, 1,
                             {"source": GATED, "slots": "*i32", "out": Q8, "k": "i32"}),
    "experts_mma": (experts_mma.experts_mma_kernel, {"STRIDE": 512, "shape": ExpertsMmaShape(1, 1, 4, 1, False)}, 4,
                    {"pairs": "*i32", "tiles": "*i32"}),
    "experts_mma_16": (experts_mma.experts_mma_kernel, {"STRIDE": 512, "shape": ExpertsMmaShape(2, 2, 2, 1, False)}, 2,
                       {"pairs": "*i32", "tiles": "*i32"}),
    **{name: (routing.route_kernel, {"ROWS": 32, "N": rows, "TOKENS": tokens, "EXPERTS": 128, "B": block}, 8, {
        "source": SOURCE, "w": "*fp32", "bias": bias, "logits": ROWS, "normed": ROWS, "codes": Q8, "counter": "*i32",
        "tokens": "i32", "k": "i32"})
       for name, rows, tokens, block, bias in (("route", 2, 1, 2048, None), ("route_few", 2, 4, 4096, "*fp32"))},
    "route_many": (routing.route_many_kernel, {
        "TILES": 4, "SPLITS": 8, "M": 16, "N": 32, "K": 64, "B": 2048}, 8, {
            "source": SOURCE, "w": "*fp32", "bias": None, "logits": ROWS, "normed": ROWS,
            "splits": SplitK("*fp32", "*i32"), "tokens": "i32", "k": "i32"}),
    "sum_experts_norm": (routing.sum_experts_norm_kernel, {
        "NORMALIZED": True, "EXPERTS": 32, "USED": 4, "B": 4096}, 16, {
            "rows": "*fp32", "logits": ROWS, "term": ROWS, "out": ROWS, "norm": "*fp32", "codes": Q8,
            "ordered": "*fp16", "k": "i32"}),
    "sort": (experts.sort_kernel, {"BLOCK_M": 0, "B": 1024, "EXPERTS": 0}, 4, {"tiles": None}),
    "sort_tiles": (experts.sort_kernel, {"BLOCK_M": 64, "B": 4096, "EXPERTS": 0}, 16, {"tiles": "*i32"}),
    "sort_list": (experts.sort_kernel, {"BLOCK_M": 8, "B": 1024, "EXPERTS": 128}, 4, {"tiles": "*i32"}),
    "gather_pairs": (experts.gather_kernel, {"KIND": SWIGLU, "ROWS": 1, "B": 1024}, 4,
                     {"source": SOURCE, "out": "*fp16", "k": "i32"}),
    "gather_many_pairs": (experts.gather_kernel, {"KIND": SWIGLU, "ROWS": 4, "B": 1024}, 4,
                          {"source": SOURCE, "out": "*fp16", "k": "i32"}),
    "experts_few": (experts.experts_kernel, {"EXPERTS": 128}, 4, {"x": "*fp16", "experts": "i32"}),
    "experts": (experts.experts_kernel, {"EXPERTS": 128}, 4, {"x": "*fp16", "experts": "i32"}),
    "experts_wide": (experts.experts_kernel, {"EXPERTS": 128}, 8, {"x": "*fp16", "experts": "i32"}),
    "float_experts": (experts.float_experts_kernel,
                      {"EXPERTS": 128, "shape": ExpertsShape(64, 128, 8), "PRECISION": None}, 8,
                      {"w": "*bf16", "x": Matrix("*bf16", "i32"), "y": ROWS, "experts": "i32"}),
    "float_matvec": (float_matvec_kernel, {"BLOCK_N": 8, "BLOCK_K": 512}, 8,
                     {"w": "*fp16", "x": ROWS, "experts": None, "terms": (), "y": ROWS, "k": "i32"}),
    "f16_scales": (w4a16_hopper.scales_kernel, {"BLOCK_N": 64, "PAIRS": 16}, 4, {"out": "*i32"}),
    "folded_scales": (w4a16_hopper.folded_scales_kernel, {"BLOCK_N": 64, "PAIRS": 16}, 4,
                      {"out": "*i32", "factors": "*fp32"}),
    "reorder": (w4a16_hopper.reorder_kernel, {"B": 2048}, 4, {"out": "*fp16"}),
}
