"""Measures what types of the KV cache cost, to bench/results/cache-accuracy-<day>.json.

    python bench/cache_accuracy.py RETRIEVAL.gguf [--types f16,q8_0] [--chunks N] [--rows N] [--threads N]
                                   [--commit HASH] [-o FOLDER]

RETRIEVAL.gguf is made by tools/demo/retrieval.py. Both parts run on the CPU. Each type is measured as it is
(`dynamic`), and with `static` scales, which are measured over other text.

divergence  the demo model's on its text, windows of 512 tokens, from the same with a cache in float32: for each type
            the mean in nats, its standard error, and the share of tokens that both find likeliest
retrieval   values found of those asked for in rows of 8,192 tokens, the share of what the first type finds as it is,
            and the divergence of answers
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import results_file
import texts
from octavo.bench import machine
from octavo.calibrate.caches.scales import write_scales
from octavo.calibrate.statistics_run import StatisticsOptions, StatisticsRun
from octavo.calibrate.texts import demo_text
from octavo.evals.eval_model import open_subject
from octavo.evals.kl_divergence import divergence
from octavo.evals.retrieval import draw, key_tokens, retrieve, value_tokens
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.runtime import Model

CONTEXT, RETRIEVAL_CONTEXT, SAMPLES, RETRIEVAL_SAMPLES = 512, 8192, 16, 4
"""Tokens of windows, and windows that models are calibrated with."""
SEED = 0
"""Of the rows that are asked; those to calibrate with are others (`texts.py`)."""

Place = dict[str, Any]
Rows = dict[str, dict[str, dict[str, Any]]]
"""Results by "dynamic" or "static", and by type."""


def with_constants(model: str, text: str, samples: int, context: int, folder: Path, place: Place) -> dict[str, str]:
    """A model as it is, and written with scales measured over a text."""
    files = {"dynamic": model, "static": str(folder / "static.gguf")}
    with StatisticsRun(model, text, StatisticsOptions(samples, context, clips=True, **place)) as calibration:
        statistics = calibration.run(folder / "statistics.safetensors")
        write_scales(calibration.spec, statistics, files["static"])
    return files


def types_of(name: str, types: list[Any]) -> list[Any]:
    """Those that such a file changes."""
    return [kv for kv in types if name == "dynamic" or CACHE_FORMATS[kv].can_be_static]


def each(files: dict[str, str], types: list[Any], context: int, place: Place) -> Iterator[tuple[str, str, Model]]:
    """Each file with each type that it changes, loaded."""
    for name, path in files.items():
        for kv in types_of(name, types):
            with open_subject(path, context, cache_type=kv, **place) as model:
                yield name, kv, model


def compared(model: Model, base: Model, tokens: list[int], **how: Any) -> dict[str, Any]:
    """Divergence as results have it."""
    kl = divergence(model, base, tokens, **how)
    return {"kl": kl.kl.value, "error": kl.kl.error, "same_top": kl.same_top.value, "tokens": kl.tokens}


def divergences(types: list[Any], chunks: int | None, place: Place) -> Rows:
    """Of each type, as each file of the demo model has it."""
    found: Rows = {}
    with tempfile.TemporaryDirectory() as folder, open_subject("demo", CONTEXT, cache_type="f32", **place) as base:
        tokens = demo_text(base.tokenizer, "test").tokens
        files = with_constants("demo", "demo", SAMPLES, CONTEXT, Path(folder), place)
        for name, kv, model in each(files, types, CONTEXT, place):
            row = compared(model, base, tokens, context=CONTEXT, chunks=chunks)
            found.setdefault(name, {})[kv] = row
            print(name, kv, f"{row['kl']:.3g} +- {row['error']:.2g}", flush=True)
    return found


def retrieved(path: str, types: list[Any], rows: int, place: Place) -> Rows:
    """Of each type, as each file of the model has it, what is found, and the divergence of answers."""
    found: Rows = {}
    context, first = RETRIEVAL_CONTEXT, types[0]
    with tempfile.TemporaryDirectory() as folder, open_subject(path, context, cache_type="f32", **place) as base:
        text = texts.calibration(path, Path(folder), context, RETRIEVAL_SAMPLES)
        files = with_constants(path, text, RETRIEVAL_SAMPLES, context, Path(folder), place)
        keys, values, rng = key_tokens(base.tokenizer), value_tokens(base.tokenizer), np.random.default_rng(SEED)
        drawn = [draw(rng, keys, values, context) for _ in range(rows)]  # those that `retrieve` asks
        tokens = [int(token) for row in drawn for token in row.tokens]
        answers = np.concatenate([np.roll(row.asked, 1) for row in drawn])
        for name, kv, model in each(files, types, context, place):
            tally = retrieve(model, context, rows, SEED)
            row = {"right": tally.right, "asked": tally.n, "interval": tally.interval()}
            found.setdefault(name, {})[kv] = row
            row["share"] = tally.right / found["dynamic"][first]["right"]
            row |= compared(model, base, tokens, context=context, scored=answers)
            kl = f"{row['kl']:.3g} +- {row['error']:.2g}"
            print("retrieval", name, kv, f"{tally.right} of {tally.n}, {kl}", flush=True)
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
    types, place = options.types.split(","), {"device": "cpu", "threads": options.threads}
    result = {
        **results_file.described(commit=options.commit),
        "context": CONTEXT, "chunks": options.chunks, "rows": options.rows,
        "divergence": divergences(types, options.chunks, place),
        "retrieval": retrieved(options.retrieval, types, options.rows, place),
    }
    results_file.write("cache-accuracy", result, options.output)


if __name__ == "__main__":
    main()
