"""Weights chosen by what a text shows: GPTQ, Qronos, AWQ, SmoothQuant, QQQ, RPTQ, rotations, and statistics.

Comes in: a model, a text. Goes out: weights in a format or a scheme, which `octavo.quantizers` writes, or a file of
statistics. Begin with `gguf/gguf_method.py` and `schemes/scheme_method.py`, and with `runner/`, which runs a model
stage by stage; `methods/` and `hessian.py` are the mathematics, `fold/` says which channels can take a scale. All of it
takes NumPy's arrays, or tensors of torch where a device has them: `arrays.py`.

method = octavo.calibrate.GgufMethod("wiki.txt", "gptq") octavo.quantizers.quantize_file("f16.gguf", "q4.gguf",
"Q4_K_M", method=method) codes = octavo.calibrate.gptq(values, hessian, "Q4_K").packed # errors that make up for each
other

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.calibrate.gguf.gguf_method import GgufMethod
    from octavo.calibrate.methods.gptq import GptqRows, gptq
    from octavo.calibrate.schemes.scheme_method import SchemeMethod
    from octavo.calibrate.statistics_run import collect_statistics

__all__ = ["GgufMethod", "GptqRows", "SchemeMethod", "collect_statistics", "gptq"]

__getattr__ = names_from(__name__, {
    "octavo.calibrate.gguf.gguf_method": ["GgufMethod"],
    "octavo.calibrate.methods.gptq": ["GptqRows", "gptq"],
    "octavo.calibrate.schemes.scheme_method": ["SchemeMethod"],
    "octavo.calibrate.statistics_run": ["collect_statistics"],
})
