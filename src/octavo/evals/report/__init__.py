"""A page that says how good a quantized model is: errors, codes, scales, size against quality, and what to change.

    octavo.evals.report.write_report("model-q4.gguf", "report.html", base="model-f16.gguf")

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.evals.report.page import Findings, render
    from octavo.evals.report.quality import Plan, measure_quality
    from octavo.evals.report.tensors import measure
    from octavo.evals.report.write import write_report

__all__ = ["Findings", "Plan", "measure", "measure_quality", "render", "write_report"]

__getattr__ = names_from(__name__)
