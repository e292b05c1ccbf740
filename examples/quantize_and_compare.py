"""Quantize a model to several types, and what each costs: `python examples/quantize_and_compare.py [MODEL] [TEXT.txt]`.

The divergence (Kullback-Leibler) says how far the probabilities of tokens are from those of the model itself.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo import evals
from octavo.evals.eval_model import open_subject
from octavo.quantizers import quantize_file

source, text = (*sys.argv[1:3], "demo", "demo")[:2]
with TemporaryDirectory() as folder, open_subject(source, 512) as base:
    read = evals.demo_text(base.tokenizer, "test") if text == "demo" else evals.read_text(text, base.tokenizer)
    for preset in ("Q8_0", "Q4_K_M", "Q2_K"):
        file = Path(folder) / f"{preset}.gguf"
        quantize_file(source, file, preset)
        with open_subject(file, 512) as model:
            found = evals.divergence(model, base, read.tokens, chunks=4)
        print(
            f"{preset:8} {file.stat().st_size / 1e6:8.1f} MB   divergence {found.kl.value:.5f} +- {found.kl.error:.5f}"
        )
