"""What methods are worth on a real model, by the judge; writes bench/results/method-kl-MODEL-<date>.json.

    python bench/method_kl.py MODEL.gguf --calibration TEXT [--held-out TEXT] [--formats Q4_K_M,w4a16-g128,...]
                              [--ways plain,imatrix,gptq,...] [--folder DIR] [--samples 32] [--chunks 8]
                              [--device cpu] [--threads N] [--add RESULT ...] [-o FOLDER]

MODEL is a GGUF file of floats, as SmolLM2-135M in rows of 768 (`tools/real_models.py`, `tools/pad_model.py`). Presets
are made by the encoders (plain), by these with an importance matrix, and by methods; schemes by methods, of which rtn
is plain. A way that begins with rotated- is of the model with its residual stream and its heads turned; its embedding,
which is then beside the output, is Q6_K as one that is both. llm-compressor is that library's own GPTQ, for w4a16-g128
(`bench/reference_gptq.py` says where it comes from). Importance and Hessians are of the same windows of TEXT.
Files of a format are judged together (`octavo eval compare`), on the text that comes with Octavo or on `--held-out`: in
floats, and with the engine's activations where a scheme rounds them.

The result is written whenever a format is done. `--add` goes on with results of the same texts and windows, which it
joins, and files that are in DIR are not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import results_file
from octavo.calibrate.fold import rotate
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.calibrate.texts import read_text
from octavo.evals import collect_imatrix
from octavo.evals.eval_model import open_subject
from octavo.evals.judge.judged_text import SHIPPED
from octavo.evals.judge.judgement import Judgement, judge
from octavo.formats import dequantize
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import quantize_checkpoint, quantize_file
from octavo.quantizers.mix.mixing import Choices

CONTEXT = 512
FORMATS = "Q4_K_M,Q4_0,Q3_K_M,Q2_K,w4a16-g128,w4a8-g128"
ROTATED, REFERENCE = "rotated-", "llm-compressor"
ABOUT = ("model", "samples", "text", "text_sha256", "overlap", "context", "windows", "positions", "clusters",
         "base_perplexity")
"""What rows of a result have in common."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--held-out", default=SHIPPED)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--ways", default="plain,imatrix,gptq")
    parser.add_argument("--folder", type=Path, default=Path("method-kl"))
    parser.add_argument("--samples", type=int, default=32, help="windows of the calibration text")
    parser.add_argument("--chunks", type=int, default=8, help="windows of the held-out text")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="results to go on with")
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    about, rows = before(options.add)
    for name in options.formats.split(","):
        done = {row["way"] for row in rows if row["format"] == name}
        ways = [way for way in options.ways.split(",") if way not in done and applies(name, way)]
        if ways:
            made = {way: make(options, name, way) for way in ways}
            found = judged(options, name, made)
            about = same(about, about_judging(found) | {"model": options.model.stem, "samples": options.samples})
            rows += [row_of(found, name, way, path) for way, path in made.items()]
            print(*rows[-len(ways) :], sep="\n", flush=True)
        write(options, about, rows)


def before(results: list[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What results have in common, and the rows of all. Raises ValueError where they are of other texts or windows."""
    about, rows = dict[str, Any](), list[dict[str, Any]]()
    for path in results:
        found = json.loads(path.read_text(encoding="utf-8"))
        about = same(about, {key: found[key] for key in ABOUT})
        rows += found["rows"]
    return about, rows


def same(about: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What a judgement says of its text, once more."""
    if about and about != other:
        raise ValueError(f"{other} is not what was judged before: {about}")
    return other


def about_judging(found: Judgement) -> dict[str, Any]:
    known = asdict(found) | {"base_perplexity": found.base_perplexity.value}
    return {key: known[key] for key in ABOUT[2:]}


def write(options: argparse.Namespace, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    result = {**results_file.described(), **about, "rows": rows}
    results_file.write(f"method-kl-{options.model.stem}", result, options.output)


def is_scheme(name: str) -> bool:
    return name in CHECKPOINT_SCHEMES


def applies(name: str, way: str) -> bool:
    """Schemes take no importance matrix; llm-compressor makes one of them."""
    return name == "w4a16-g128" if way == REFERENCE else not (is_scheme(name) and way.endswith("imatrix"))


def make(options: argparse.Namespace, name: str, way: str) -> Path:
    """A file, or a folder of a scheme, in a format by a way; how long that took lies beside it."""
    out = options.folder / (f"{name}-{way}" + ("" if is_scheme(name) else ".gguf"))
    seconds = out.with_name(f"{out.name}.seconds")
    if seconds.exists():
        return Path(out)
    print(out.name, flush=True)
    method, source = way.removeprefix(ROTATED), source_of(options, way)
    begun = time.perf_counter()
    how: dict[str, Any] = {"samples": options.samples, "threads": options.threads, "device": options.device}
    if way == REFERENCE:
        import references
        from reference_gptq import reference

        tokens = references.calibration_tokens(str(source), options.calibration, options.samples)
        with TemporaryDirectory(dir=options.folder) as folder:
            reference(references.write_folder(str(source), Path(folder) / "floats"), tokens, out, None)
    elif is_scheme(name):
        shutil.rmtree(out, ignore_errors=True)
        by = SchemeMethod(options.calibration, "rtn" if method == "plain" else method, **how)
        quantize_checkpoint(source, out, name, method=by, threads=options.threads)
    else:
        compensates = method not in ("plain", "imatrix")
        choices = Choices(embedding_type="Q6_K") if way.startswith(ROTATED) else None
        quantize_file(source, out, name, choices=choices, threads=options.threads,
                      imatrix=None if method == "plain" else imatrix_of(options, source),
                      method=GgufMethod(options.calibration, method, **how) if compensates else None)  # type: ignore[arg-type]
    seconds.write_text(f"{time.perf_counter() - begun:.1f}")
    return Path(out)


def source_of(options: argparse.Namespace, way: str) -> Path:
    """The model, or the model with what can be turned turned, written once."""
    if not way.startswith(ROTATED):
        return Path(options.model)
    out = options.folder / "rotated.gguf"
    if not out.exists():
        with GGUFFile.open(options.model) as file:
            keys, turned = {key: file.metadata.typed(key) for key in file.metadata}, rotate(file)
            tensors = {name: dequantize(turned.tensor(name)) for name in turned.tensors}
            stored = {name: x.astype(np.float16) if x.ndim > 1 else x for name, x in tensors.items()}
            write_gguf(out, file.metadata["general.architecture"], keys, stored)
    return Path(out)


def imatrix_of(options: argparse.Namespace, source: Path) -> Path:
    """The importance matrix of a model over the windows that methods run, made once."""
    out = options.folder / f"{source.stem}.imatrix.gguf"
    if not out.exists():
        with open_subject(str(source), CONTEXT, device=options.device, threads=options.threads, fuse=False) as model:
            tokens = read_text(options.calibration, model.tokenizer).tokens
            count = len(tokens) // CONTEXT
            chosen = np.unique(np.linspace(0, count - 1, min(count, options.samples)).astype(int)).tolist()
            some = [token for i in chosen for token in tokens[i * CONTEXT : (i + 1) * CONTEXT]]
            collect_imatrix(model, some, context=CONTEXT).save(str(out))
    return Path(out)


def judged(options: argparse.Namespace, name: str, made: dict[str, Path]) -> Judgement:
    """A format's files beside the model."""
    rounds = is_scheme(name) and CHECKPOINT_SCHEMES[name].activation != "f32"
    return judge(str(options.model), list(map(str, made.values())), options.held_out, chunks=options.chunks,
                 exact=not rounds, noise_windows=0, calibration=options.calibration, device=options.device,
                 threads=options.threads)


def row_of(found: Judgement, name: str, way: str, path: Path) -> dict[str, Any]:
    """What was found of a file; one that could not be judged says why."""
    seconds = float(path.with_name(f"{path.name}.seconds").read_text())
    about: dict[str, Any] = {"format": name, "way": way, "seconds": seconds}
    for verdict in found.files:
        if verdict.name == path.name:
            kept = ("kl", "median", "p99", "same_top", "perplexity", "ratio")
            return {**about, "bytes": verdict.sizes.total, "body_bits": verdict.sizes.body_bits, "rank": verdict.rank,
                    **{key: value for key, value in asdict(verdict).items() if key in kept}}
    with suppress(KeyError):
        about["failed"] = found.failed[path.name]
    return about


if __name__ == "__main__":
    main()
