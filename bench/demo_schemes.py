"""Quantizes the demo model by each 8-bit scheme, measures each, and writes bench/results/demo-schemes-<date>.json.

    python bench/demo_schemes.py [--questions N]

All runs on the CPU, where products are those of the scheme. Divergence and perplexity are of questions that the demo
model was not trained on (divergence of all tokens, perplexity of the answers). docs/checkpoints.md has the rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import octavo
import results_file
from octavo.evals import demo_text, divergence, perplexity
from octavo.evals.accuracy import evaluate
from octavo.evals.eval_model import open_subject
from octavo.huggingface import SCHEMES
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime import resolve

CONTEXT = 512


def measure(scheme: str, questions: int) -> dict[str, Any]:
    """Make a checkpoint and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, scheme)
        report = quantize_checkpoint(resolve("demo"), path, scheme)
        size = os.path.getsize(os.path.join(path, "model.safetensors"))
        with open_subject(path, CONTEXT, device="cpu") as model, open_subject("demo", CONTEXT, device="cpu") as base:
            text = demo_text(base.tokenizer, "test")
            apart = divergence(model, base, text.tokens, context=CONTEXT)
            answers = perplexity(model, text.tokens, context=CONTEXT, scored=text.scored)
        with octavo.load(path, device="cpu") as model:
            asked = evaluate(lambda prompt: "".join(model.generate(prompt, temperature=0.0, max_tokens=64)), questions)
    errors = [row.error for row in report.rows if row.error is not None]
    return {
        "name": scheme, "bytes": report.nbytes, "file_bytes": size, "bits_per_weight": report.bits_per_weight,
        "relative_error": sum(errors) / len(errors),
        "kl": [apart.kl.value, apart.kl.error], "same_top": [apart.same_top.value, apart.same_top.error],
        "tokens": apart.tokens,
        "perplexity": [answers.perplexity.value, answers.perplexity.error], "answer_tokens": answers.tokens,
        "right": asked.total.right, "questions": asked.total.n, "accuracy": asked.total.accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000)
    options = parser.parse_args()
    rows = []
    for scheme in SCHEMES:
        rows.append(measure(scheme, options.questions))
        print(f"{scheme}: KL {rows[-1]['kl'][0]:.5f}, accuracy {rows[-1]['accuracy']:.1%}", flush=True)
    how = {"questions": options.questions, "context": CONTEXT}
    results_file.write("demo-schemes", {**results_file.described(), **how, "rows": rows})


if __name__ == "__main__":
    main()
