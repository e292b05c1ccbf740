"""Quantizes the demo model in many ways, measures each, and writes bench/results/demo-presets-<date>.json.

    python bench/demo_presets.py [--questions N] [--only ROW ...]

Divergence and perplexity are of questions that the demo model was not trained on (divergence of all tokens, perplexity
of the answers); importance and sensitivities come from questions that it was trained on. Rows that are not asked for
keep what today's file says, so a run can be cut into pieces. Afterwards `python tools/gen_demo_table.py` puts the rows
into the README.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import octavo
import results_file
from octavo.bench import machine
from octavo.evals import collect_imatrix, demo_text, divergence, perplexity
from octavo.evals.accuracy import evaluate
from octavo.evals.eval_model import open_subject
from octavo.evals.sensitivity import MeasuredSlopes
from octavo.quantizers import Report, quantize_file
from octavo.quantizers.fit import quantize_to_size
from octavo.quantizers.fit.fit import Target
from octavo.quantizers.imatrix import Imatrix
from octavo.runtime import resolve

CONTEXT = 512


@dataclass(frozen=True)
class Row:
    """A way to quantize: a preset, or a number of bits a weight."""

    preset: str = ""
    bits: float | None = None
    imatrix: bool = False

    @property
    def name(self) -> str:
        base = self.preset if self.bits is None else f"--target-bpw {self.bits:g}"
        return f"{base}, imatrix" if self.imatrix else base


PLAIN = "F16 Q8_0 Q6_K Q5_K_M Q5_K_S Q4_K_M Q4_K_S Q4_0 IQ4_NL IQ4_XS Q3_K_M Q2_K".split()
WEIGHTED = "Q4_K_M Q4_K_S IQ4_XS Q3_K_M Q2_K".split()
ROWS = (
    *(Row(preset) for preset in PLAIN),
    *(Row(preset, imatrix=True) for preset in WEIGHTED),
    Row(bits=4.5),
    Row(bits=4.5, imatrix=True),
)


def make(row: Row, imatrix: Imatrix | None, path: str) -> tuple[Report, float | None]:
    """The demo model quantized; what became of it, and the divergence that is expected, where it is."""
    if row.bits is None:
        return quantize_file(resolve("demo"), path, row.preset, imatrix=imatrix), None
    target = Target(bits_per_weight=row.bits)
    fitted = quantize_to_size(resolve("demo"), path, target, slopes=MeasuredSlopes("demo", imatrix), imatrix=imatrix)
    return fitted.report, fitted.loss


def measure(row: Row, imatrix: Imatrix | None, questions: int) -> dict[str, Any]:
    """Make a model and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        report, expected = make(row, imatrix if row.imatrix else None, path)
        size = os.path.getsize(path)
        with open_subject(path, CONTEXT) as model, open_subject("demo", CONTEXT) as base:
            text = demo_text(base.tokenizer, "test")
            apart = divergence(model, base, text.tokens, context=CONTEXT)
            answers = perplexity(model, text.tokens, context=CONTEXT, scored=text.scored)
        with octavo.load(path) as model:
            asked = evaluate(lambda prompt: "".join(model.generate(prompt, temperature=0.0, max_tokens=64)), questions)
    low, high = asked.total.interval()
    return {
        "name": row.name, "preset": row.preset or None, "target_bpw": row.bits, "imatrix": row.imatrix,
        "bytes": report.nbytes, "file_bytes": size, "bits_per_weight": report.bits_per_weight,
        "expected_kl": expected,
        "kl": [apart.kl.value, apart.kl.error], "same_top": [apart.same_top.value, apart.same_top.error],
        "tokens": apart.tokens,
        "perplexity": [answers.perplexity.value, answers.perplexity.error], "answer_tokens": answers.tokens,
        "right": asked.total.right, "questions": asked.total.n, "accuracy": asked.total.accuracy,
        "accuracy_interval": [low, high],
    }


def importance() -> Imatrix:
    with open_subject("demo", CONTEXT, fuse=False) as model:
        text = demo_text(model.tokenizer, "train")
        return collect_imatrix(model, text.tokens, name=text.name, context=CONTEXT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=None, help="names of rows, as Q4_K_M or 'Q4_K_M, imatrix'")
    options = parser.parse_args()
    wanted = [row for row in ROWS if options.only is None or row.name in options.only]
    imatrix = importance() if any(row.imatrix for row in wanted) else None
    described = results_file.described()
    path = results_file.path_of("demo-presets", described)
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for row in wanted:
        rows[row.name] = {**measure(row, imatrix, options.questions), "commit": machine.commit()}
        print(f"{row.name}: KL {rows[row.name]['kl'][0]:.5f}, accuracy {rows[row.name]['accuracy']:.1%}", flush=True)
        how = {"questions": options.questions, "context": CONTEXT}
        found = [rows[r.name] for r in ROWS if r.name in rows]
        results_file.write("demo-presets", {**described, **how, "rows": found})


if __name__ == "__main__":
    main()
