"""Compares w4a16-g128 with llm-compressor's GPTQ on the same checkpoint and tokens.

    PYTHONPATH=OVERLAY:src python bench/reference_gptq.py [demo | FOLDER] [--methods gptq,auto] [--samples 16]

It writes bench/results/reference-gptq-MODEL-<date>.json.
OVERLAY has llmcompressor (`pip install --target OVERLAY llmcompressor`), which nothing else here needs. It is given the
model in float32 and the token ids that Octavo's own methods run the model over. What it writes is opened and measured
as any checkpoint, by divergence from the original on questions that none of them saw.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import references
import results_file
from octavo.evals.schemes import SchemeMethod
from octavo.io.named import resolve
from octavo.quantizers import quantize_checkpoint

SCHEME = "w4a16-g128"
OBSERVERS = (None, "memoryless_mse")
"""How llm-compressor finds the range of a group: its default, the extremes, and the least squared error."""


def reference(folder: Path, tokens: list[list[int]], out: Path, observer: str | None) -> float:
    """Write `folder` as llm-compressor's GPTQ quantizes it to `out`; how many seconds that took."""
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows: Any = [{"input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row))} for row in tokens]
    data = torch.utils.data.DataLoader(rows, batch_size=None)
    more = {} if observer is None else {"weight_observer": observer}
    recipe = GPTQModifier(targets="Linear", scheme="W4A16", ignore=["lm_head"], **more)
    begun = time.perf_counter()
    oneshot(
        model=model, tokenizer=str(folder), dataset=data, recipe=recipe, num_calibration_samples=len(tokens),
        max_seq_length=references.CONTEXT, shuffle_calibration_samples=False, pipeline="sequential",
        output_dir=str(out),
    )  # fmt: skip
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--methods", default="rtn,gptq,qronos,auto")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    name = f"reference-gptq-{Path(options.model).stem}"
    how = {"model": Path(options.model).name, "scheme": SCHEME, "samples": options.samples, "chunks": options.chunks}
    packages = references.versions("llmcompressor", "compressed-tensors", "torch", "transformers")

    def add(**row: Any) -> None:
        rows.append(row)
        print(row, flush=True)
        results_file.write(name, {**results_file.described(**packages), **how, "rows": rows})

    with tempfile.TemporaryDirectory() as temporary:
        source = resolve(options.model)
        folder = references.write_folder(source, Path(temporary) / "floats")
        tokens = references.calibration_tokens(source, options.samples)
        for observer in OBSERVERS:
            out = Path(temporary) / f"reference-{observer}"
            seconds = reference(folder, tokens, out, observer)
            kl = references.kl(out, source, options.chunks)
            add(by="llm-compressor", method="gptq", observer=observer or "default", kl=kl, seconds=seconds)
        for kind in options.methods.split(","):
            out, begun = Path(temporary) / kind, time.perf_counter()
            method = SchemeMethod("demo", kind, samples=options.samples, device="cpu")
            report = quantize_checkpoint(source, out, SCHEME, method=method)
            kl = references.kl(out, source, options.chunks)
            add(by="octavo", method=kind, kl=kl, seconds=time.perf_counter() - begun, bytes=report.nbytes)


if __name__ == "__main__":
    main()
