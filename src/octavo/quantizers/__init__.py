"""Making quantized weights: encoders for every block format, with and without importance weights.

    packed = octavo.quantizers.encode(values, "Q4_K", importance=imatrix)      # [rows, K] -> uint8 [rows, bytes]
    report = octavo.quantizers.quantize_file("f16.gguf", "q4.gguf", "Q4_K_M")  # a whole model
    report = octavo.quantizers.quantize_checkpoint("f16.gguf", "int8", "int8-w8a8")  # to a checkpoint folder

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.quantizers.arrays import SymmetricInt8, ZeroPointUint8, quantize_symmetric, quantize_zero_point
    from octavo.quantizers.encoding.encoder import ENCODABLE, encode
    from octavo.quantizers.fit import Target, quantize_to_size
    from octavo.quantizers.job.job_report import Report
    from octavo.quantizers.job.quantize import quantize_file
    from octavo.quantizers.mix.mixing import Choices
    from octavo.quantizers.mix.presets import PRESETS, Preset
    from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint

__all__ = [
    "ENCODABLE",
    "PRESETS",
    "Choices",
    "Preset",
    "Report",
    "SymmetricInt8",
    "Target",
    "ZeroPointUint8",
    "encode",
    "quantize_checkpoint",
    "quantize_file",
    "quantize_symmetric",
    "quantize_to_size",
    "quantize_zero_point",
]

__getattr__ = names_from(__name__, {
    "octavo.quantizers.arrays": ["SymmetricInt8", "ZeroPointUint8", "quantize_symmetric", "quantize_zero_point"],
    "octavo.quantizers.schemes.checkpoint_folder": ["quantize_checkpoint"],
    "octavo.quantizers.encoding.encoder": ["ENCODABLE", "encode"],
    "octavo.quantizers.fit": ["Target", "quantize_to_size"],
    "octavo.quantizers.job.quantize": ["quantize_file"],
    "octavo.quantizers.job.job_report": ["Report"],
    "octavo.quantizers.mix.mixing": ["Choices"],
    "octavo.quantizers.mix.presets": ["PRESETS", "Preset"],
})
