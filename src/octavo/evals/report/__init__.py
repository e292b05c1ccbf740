"""A page that says how good a quantized model is: errors, codes, scales, size against quality, and what to change.

octavo.evals.report.write_report("model-q4.gguf", "report.html", base="model-f16.gguf")
"""

from __future__ import annotations

from octavo.evals.report.findings import measure
from octavo.evals.report.quality import QualityPlan, measure_quality
from octavo.evals.report.report_page import Findings, render, write_report

__all__ = ["Findings", "QualityPlan", "measure", "measure_quality", "render", "write_report"]
