"""The best files of a real model beside the best presets of their sizes; writes bench/results/frontier-<date>.json.

    python bench/frontier.py MODEL.gguf --calibration TEXT [--bits 3.0,3.5,4.0,4.8] [--folder DIR] [--chunks N]
                             [--samples N] [--groups N] [--rounds N] [--method gptq] [--presets NAMES] [--threads N]
                             [-o FOLDER]

MODEL is a GGUF file of floats, as SmolLM2-135M in rows of 768 (`tools/real_models.py`, `tools/pad_model.py`). Bits are
of the body, between embedding and output, with a head of Q6_K, as most presets have it: what a file may take in all is
the sum of both. Each preset is made with the importance matrix that the frontier uses; the best one of a size has the
least divergence of all that take no more bytes. All files are judged together, in floats, on the text that comes with
Octavo. Nothing is made twice: the same command goes on in DIR.

    python bench/frontier.py RESULT.json -o PICTURE.svg

draws what a result has, as in docs/which-file.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pydantic

import results_file
from octavo.evals.judge.judgement import HEAD, Judgement, judge
from octavo.evals.judge.picture import draw
from octavo.formats import by_name
from octavo.frontier.page import write_page
from octavo.frontier.plan import Options, Subject, plan
from octavo.frontier.run import make_frontier
from octavo.quantizers import quantize_file
from octavo.quantizers.fit.fit import Target
from octavo.quantizers.job.job_source import ModelSource

PRESETS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "Q2_K", "IQ3_XXS", "IQ3_XS", "Q3_K_S", "IQ3_S", "IQ3_M", "Q3_K_M",
           "Q3_K_L", "IQ4_XS", "Q4_0", "IQ4_NL", "Q4_K_S", "Q4_K_M")


def whole_bits(source: ModelSource, body: float) -> float:
    """Bits a weight of all tensors, with `body` bits between the head's, which are Q6_K."""
    head = sum(t.size for t in source.tensors if t.name.startswith(HEAD))
    values = sum(t.size for t in source.tensors)
    return (body * (values - head) + by_name("Q6_K").bits_per_weight * head) / values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration")
    parser.add_argument("--bits", default="3.0,3.5,4.0,4.8")
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--folder", type=Path, default=Path("frontier"))
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--rounds", type=int, default=Options("").rounds)
    parser.add_argument("--samples", type=int, default=Options("").samples)
    parser.add_argument("--groups", type=int, default=Options("").groups)
    parser.add_argument("--method", choices=("encoder", "gptq"), default="encoder")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    given = parser.parse_args()
    if given.model.suffix == ".json":
        picture(json.loads(given.model.read_text(encoding="utf-8")), given.output)
        return
    if given.calibration is None:
        parser.error("--calibration TEXT is missing")
    options = Options(
        given.calibration, method=given.method, samples=given.samples, rounds=given.rounds, groups=given.groups,
        chunks=given.chunks, exact=True, threads=given.threads, device="cpu",
    )
    with Subject(str(given.model), options) as subject:
        wanted = {float(bits): Target(whole_bits(subject.source, float(bits))) for bits in given.bits.split(",")}
        planned = plan(subject, str(given.folder), list(wanted.values()), options)
        made = make_frontier(subject, str(given.folder), planned, options, progress=_told)
    write_page(made, str(given.folder))
    names = {bits: file.name for bits, file in zip(wanted, planned.files, strict=True)}
    found = _judged(given, [given.folder / name for name in names.values()], options)
    rows = [row(found, bits, names[bits], names.values()) for bits in wanted]
    for each in rows:
        print(each)
    judged = pydantic.TypeAdapter(Judgement).dump_python(found, mode="json")
    results_file.write("frontier", {**results_file.described(), "rows": rows, "files": [asdict(f) for f in made.files],
                                    "judgement": judged}, given.output)


def picture(results: dict[str, Any], path: Path) -> None:
    """Divergence over bytes of all files in a result; the rows say what files are called, and which are a frontier."""
    judged = pydantic.TypeAdapter(list[Judgement]).validate_python(
        [results["judgement"]] if "judgement" in results else results["judgements"])
    names = {row["kl"]: row["file"] for row in results["rows"]}
    files = [replace(v, name=names.get(v.kl.value, v.name)) for each in judged for v in each.files]
    ours = {row["file"] for row in results["rows"] if row.get("method", "encoder") == "encoder"}
    draw(replace(judged[0], files=files), str(path), ours)


def _judged(given: Any, files: list[Path], options: Options) -> Judgement:
    """The files and all presets on the same windows."""
    presets = given.folder / "presets"
    presets.mkdir(exist_ok=True)
    for name in given.presets.split(","):
        if not (presets / f"{name}.gguf").exists():
            _told(name, 0, 0)
            quantize_file(given.model, presets / f"{name}.gguf", name, threads=given.threads,
                          imatrix=given.folder / "work" / "imatrix.gguf")
    paths = [*files, *(presets / f"{name}.gguf" for name in given.presets.split(","))]
    return judge(str(given.model), list(map(str, paths)), chunks=given.chunks, exact=True, noise_windows=0,
                 calibration=given.calibration, device="cpu", threads=given.threads,
                 progress=lambda done, total, what: _told(what, done, total))


def row(found: Judgement, bits: float, name: str, ours: Any) -> dict[str, Any]:
    """A size: our file, the best preset of no more bytes, and the ratio of their divergences."""
    mine = next(v for v in found.files if v.name == name)
    others = [v for v in found.files if v.name not in set(ours) and v.sizes.total <= mine.sizes.total * 1.002]
    best = min(others, key=lambda v: v.kl.value)
    return {"body_bits": bits, "file": name, "bytes": mine.sizes.total, "kl": mine.kl.value, "preset": best.name,
            "preset_bytes": best.sizes.total, "preset_kl": best.kl.value, "ratio": mine.kl.value / best.kl.value}


def _told(what: str, done: int, total: int) -> None:
    print(f"{what} {done}/{total}" if total else what, end="\x1b[K\r", flush=True)


if __name__ == "__main__":
    main()
