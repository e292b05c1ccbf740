"""Measures what types of the KV cache cost, to bench/results/cache-accuracy-<day>.json.

    python bench/cache_accuracy.py RETRIEVAL.gguf [--types f16,q8_0] [--chunks N] [--rows N] [--threads N]
                                   [--commit HASH] [-o FOLDER]

RETRIEVAL.gguf is made by tools/demo/retrieval.py. Both parts run on the CPU.

divergence  the demo model's on its text, windows of 512 tokens, from the same with a cache in float32: for each type
            the mean in nats, its standard error, and the share of tokens that both find likeliest. As the type is
            (`dynamic`); with keys less their `centers`; with centers and `static` scales, measured over another text
retrieval   values found of those asked for in rows of 8,192 tokens, and the share of what the first type finds
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import results_file
from octavo.bench import machine
from octavo.evals.cache_scales import write_scales
from octavo.evals.calibration import Calibration, Options
from octavo.evals.kl import divergence
from octavo.evals.retrieval import retrieve
from octavo.evals.subject import open_subject
from octavo.evals.texts import demo_text
from octavo.formats.cache import CACHE_FORMATS

CONTEXT, RETRIEVAL_CONTEXT, SAMPLES = 512, 8192, 16


def with_constants(folder: str, threads: int | None) -> dict[str, str]:
    """The demo model as it is, and written with measured centers, and with scales too."""
    files = {"dynamic": "demo", "centers": f"{folder}/centers.gguf", "static": f"{folder}/static.gguf"}
    options = Options(SAMPLES, CONTEXT, 0, False, "cpu", threads)
    with Calibration("demo", "demo", options) as calibration:
        statistics = calibration.run(f"{folder}/statistics.safetensors")
        for name in ("centers", "static"):
            write_scales(calibration.spec, statistics, files[name], only_centers=name == "centers")
    return files


def types_of(name: str, types: list[Any]) -> list[Any]:
    """Those that such a file changes."""
    able: dict[str, Any] = {
        "dynamic": lambda _: True,
        "centers": lambda t: t.can_be_centered,
        "static": lambda t: t.can_be_static,
    }
    return [kv for kv in types if able[name](CACHE_FORMATS[kv])]


def divergences(types: list[Any], chunks: int | None, threads: int | None) -> dict[str, dict[str, Any]]:
    """Of each type, as each file has it."""
    found: dict[str, dict[str, Any]] = {}
    place: Any = {"device": "cpu", "threads": threads}
    with tempfile.TemporaryDirectory() as folder, open_subject("demo", CONTEXT, cache_type="f32", **place) as base:
        tokens = demo_text(base.tokenizer, "test").tokens
        for name, path in with_constants(folder, threads).items():
            for kv in types_of(name, types):
                with open_subject(path, CONTEXT, cache_type=kv, **place) as model:
                    kl = divergence(model, base, tokens, context=CONTEXT, chunks=chunks)
                row = {"kl": kl.kl.value, "error": kl.kl.error, "same_top": kl.same_top.value, "tokens": kl.tokens}
                found.setdefault(name, {})[kv] = row
                print(name, kv, f"{kl.kl.value:.3g} +- {kl.kl.error:.2g}", flush=True)
    return found


def retrieved(path: str, types: list[Any], rows: int, threads: int | None) -> dict[str, Any]:
    """Of each type, what is found."""
    found: dict[str, Any] = {}
    for kv in types:
        with open_subject(path, RETRIEVAL_CONTEXT, device="cpu", threads=threads, cache_type=kv) as model:
            tally = retrieve(model, RETRIEVAL_CONTEXT, rows)
        found[kv] = {"right": tally.right, "asked": tally.n, "interval": tally.interval()}
        found[kv]["share"] = tally.right / found[types[0]]["right"]
        print("retrieval", kv, f"{tally.right} of {tally.n}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("retrieval")
    parser.add_argument("--types", default="f16,q8_0,int8,fp8,int4")
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    types = options.types.split(",")
    result = {
        **results_file.described(commit=options.commit),
        "context": CONTEXT, "chunks": options.chunks, "rows": options.rows,
        "divergence": divergences(types, options.chunks, options.threads),
        "retrieval": retrieved(options.retrieval, types, options.rows, options.threads),
    }  # fmt: skip
    results_file.write("cache-accuracy", result, options.output)


if __name__ == "__main__":
    main()
