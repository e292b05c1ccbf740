"""Compares w4a16-g128 with llm-compressor's GPTQ on the same checkpoint and tokens.

    PYTHONPATH=OVERLAY:src python bench/reference_gptq.py [demo | MODEL.gguf] [--methods rtn,gptq,...]
                                                      [--orders 1] [--first 0] [--add RESULT] [-o FOLDER]

It writes bench/results/reference-gptq-MODEL-<date>.json. With several orders each row is of the model with its channels
in one of them, which changes nothing but what shares a group; `ratios` are geometric means over all of them. `--add`
goes on with a result: orders that it has all rows of are not measured again.

OVERLAY has llmcompressor (`pip install --target OVERLAY llmcompressor`), which nothing else here needs. It is given the
model in float32 and the token ids that Octavo's own methods run the model over (`texts.py`). What it writes is opened
and measured as any checkpoint, by divergence from the original on a text that none of them saw.

Models of experts are loaded by its `load_quantizable_moe`, linear layers for each expert, and calibrated as it does
unless told otherwise: each expert with all tokens, whichever the router sends there. Octavo gives an expert its own.
Routers and the output matrix stay as they are on both sides, and it is an error if anything else sets them apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import references
import results_file
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.io.model_path import resolve
from octavo.quantizers import quantize_checkpoint
from scheme_methods import write_order
from texts import calibration

SCHEME = "w4a16-g128"
OBSERVERS = (None, "memoryless_mse")
"""How llm-compressor finds the range of a group: its default, the extremes, and the least squared error."""
KEPT = ("lm_head", r"re:.*mlp\.gate$")
"""Layers that it is told to leave as they are: the output matrix and routers."""
THREADS = torch.get_num_threads()
"""Of torch. Octavo's are OpenMP's as well, and torch would go on with as many as they were."""


def reference(folder: Path, tokens: list[list[int]], out: Path, observer: str | None) -> float:
    """Write `folder` as llm-compressor's GPTQ quantizes it to `out`; how many seconds that took."""
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import load_quantizable_moe
    from llmcompressor.modifiers.quantization import GPTQModifier

    torch.set_num_threads(THREADS)
    with load_quantizable_moe():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows: Any = [{"input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row))} for row in tokens]
    data = torch.utils.data.DataLoader(rows, batch_size=None)
    more = {} if observer is None else {"weight_observer": observer}
    recipe = GPTQModifier(targets="Linear", scheme="W4A16", ignore=[*KEPT], **more)
    begun = time.perf_counter()
    oneshot(
        model=model, tokenizer=str(folder), dataset=data, recipe=recipe, num_calibration_samples=len(tokens),
        max_seq_length=references.CONTEXT, shuffle_calibration_samples=False, pipeline="sequential",
        output_dir=str(out),
    )
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--methods", default="rtn,gptq,qronos,auto")
    parser.add_argument("--samples", type=int, default=16, help="windows of the calibration text")
    parser.add_argument("--chunks", type=int, default=12, help="windows of the held-out text")
    parser.add_argument("--orders", type=int, default=1, help="of channels")
    parser.add_argument("--first", type=int, default=0, help="the first order; 0 is the model's own")
    parser.add_argument("--add", type=Path, help="a result to go on with")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    name = f"reference-gptq-{Path(options.model).stem}"
    how = {"model": Path(options.model).name, "scheme": SCHEME, "samples": options.samples, "chunks": options.chunks}
    packages = references.versions("llmcompressor", "compressed-tensors", "torch", "transformers")
    source = resolve(options.model)
    rows, before = references.go_on(options.add, how) if options.add else ([], [])
    more: dict[str, Any] = {"before": before} if before else {}
    rows, done = whole_orders(rows, len(OBSERVERS) + len(options.methods.split(",")))
    with tempfile.TemporaryDirectory() as texts:
        text = calibration(options.model, Path(texts))
        for order in (i for i in range(options.first, options.first + options.orders) if i not in done):
            with tempfile.TemporaryDirectory() as temporary:
                for row in rows_of(source, order, text, options, Path(temporary)):
                    print({"order": order, **row}, flush=True)
                    rows = sorted([*rows, {"order": order, **row}], key=lambda row: row["order"])
                    described = results_file.described(**packages)
                    found = {**described, **how, **more, "ratios": ratios(rows), "rows": rows}
                    results_file.write(name, found, options.output)


def rows_of(
    source: str, order: int, text: str, options: argparse.Namespace, temporary: Path
) -> Iterator[dict[str, Any]]:
    """A row for each of the library's observers and each method, of a model with its channels in an order.

    Raises ValueError where a method rounds other layers than the library does.
    """
    tokens = references.calibration_tokens(source, text, options.samples)
    if order:
        write_order(source, temporary / "base.gguf", order)
        source = str(temporary / "base.gguf")
    folder, layers = references.write_folder(source, temporary / "floats"), set[str]()
    for observer in OBSERVERS:
        out = temporary / f"reference-{observer}"
        seconds = reference(folder, tokens, out, observer)
        layers = references.rounded_layers(out)
        kl = references.kl(out, source, options.chunks)
        yield {"by": "llm-compressor", "method": observer or "default", "kl": kl, "seconds": seconds}
    for kind in options.methods.split(","):
        out, begun = temporary / kind, time.perf_counter()
        method = SchemeMethod(text, kind, samples=options.samples, device="cpu")
        report = quantize_checkpoint(source, out, SCHEME, method=method)
        seconds = time.perf_counter() - begun
        if differ := layers ^ references.rounded_layers(out):
            raise ValueError(f"rounded by one of both only: {', '.join(sorted(differ))}")
        kl = references.kl(out, source, options.chunks)
        yield {"by": "octavo", "method": kind, "kl": kl, "seconds": seconds, "bytes": report.nbytes}


def whole_orders(rows: list[dict[str, Any]], count: int) -> tuple[list[dict[str, Any]], set[int]]:
    """The rows of orders that have `count` of them, and these orders."""
    have = Counter(row["order"] for row in rows)
    done = {order for order, found in have.items() if found == count}
    return [row for row in rows if row["order"] in done], done


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Divergences of methods over those of each of the library's observers, of the orders that have both."""
    found = {(row["method"], row["order"]): float(row["kl"][0]) for row in rows}
    out: dict[str, float] = {}
    for method in dict.fromkeys(row["method"] for row in rows if row["by"] == "octavo"):
        for observer in (name or "default" for name in OBSERVERS):
            both = [i for m, i in found if m == method and (observer, i) in found]
            logs = [np.log(found[method, i] / found[observer, i]) for i in both]
            out[f"{method} over {observer}"] = float(np.exp(np.mean(logs)))
    return out


if __name__ == "__main__":
    main()
