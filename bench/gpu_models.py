"""Times whole models on the GPU backend and writes bench/results/gpu-models-<date>.json.

    python bench/gpu_models.py FOLDER [--commit HASH] [-o FOLDER] [--only NAME ...]

Synthetic models of real shapes are made in FOLDER where they are missing. Of each: prefill of 512 and 2048 tokens,
greedy decoding of 1, 2 and 8 sequences and after 4096 tokens, in tokens a second as a caller of `greedy` sees
them; the same of one sequence that is sampled from 40 candidates; and the milliseconds that the device takes of a step.
Then the demo model's greedy replies, compared with the reference backend's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.bench import gpu, machine
from octavo.bench.subject import EngineSubject, tokens
from octavo.bench.synthetic import make
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.loading import open_model
from octavo.runtime.sampling.greedy import greedy
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.top_k import BEST
from octavo.runtime.scheduler.request import Request

MODELS = (
    ("qwen3-1.7b", "Q4_K_M"), ("qwen3-1.7b", "Q8_0"), ("llama3-8b", "Q4_K_M"), ("llama3-8b", "Q8_0"),
    ("llama3-8b", "BF16"), ("llama3-8b", "F16"),
)
PROMPTS = ("What is 12 times 7?", "Convert 3 km to meters.", "What is 25% of 80?", "What is 7 + 58?")
ROUNDS, STEPS = 5, 32


def measure(path: Path, backend: GpuBackend) -> list[dict[str, Any]]:
    """A row a test: name, tokens a second, and for decoding the device's milliseconds of a step."""
    with GGUFFile.open(path) as file:
        config = EngineConfig(n_ctx=4352, n_batch=2048, max_sequences=8, strict=True)
        subject = EngineSubject(Engine(read_model(file), [backend], config))
        rows = [_prefill(subject, n) for n in (512, 2048)]
        rows += [_decode(subject, backend, *test) for test in ((0, 1), (0, 2), (0, 8), (4096, 1))]
        return [*rows, _sampled(subject.engine)]


def _prefill(subject: EngineSubject, n: int) -> dict[str, Any]:
    times = [subject.prefill(n) for _ in range(ROUNDS + 2)][2:]
    return {"test": f"prefill {n}", "tokens_per_second": n / statistics.median(times)}


def _decode(subject: EngineSubject, backend: GpuBackend, depth: int, batch: int) -> dict[str, Any]:
    engine, sequences = subject.engine, [Sequence() for _ in range(batch)]
    prompts = [tokens(max(depth, 1), engine.model.hparams.n_vocab, seed=i) for i in range(batch)]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        if depth:
            engine.prefill(sequence, prompt)
    feeds = [Feed(s, p[-1:]) for s, p in zip(sequences, prompts, strict=True)]
    times = []
    with closing(greedy(engine, feeds)) as chosen:
        for _ in range(5):
            next(chosen)
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(STEPS):
                next(chosen)
            times.append((time.perf_counter() - start) / STEPS)
    sizes = {"tokens": batch, "outputs": batch, "sequences": batch, "boundaries": batch + 1}
    plan = engine.load().plan(sizes, (BEST,))
    backend.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        for step in plan.steps:
            step()
    backend.synchronize()
    device = (time.perf_counter() - start) / STEPS
    for sequence in sequences:
        engine.pool.release(sequence)
    row = {"test": f"decode {batch} at {depth}", "tokens_per_second": batch / statistics.median(times)}
    return row | {"device_milliseconds": device * 1e3}


def _sampled(engine: Engine) -> dict[str, Any]:
    """One sequence, each token sampled from 40 candidates."""
    core, times = EngineCore(engine), []
    prompt, sampler = tokens(8, engine.model.hparams.n_vocab), make_sampler(SamplingParams(top_k=40, seed=0))
    core.add(Request(prompt, sampler, (ROUNDS + 2) * STEPS))
    for i in range(ROUNDS + 1):
        start = time.perf_counter()
        found = 0
        while found < STEPS:
            found += sum(output.token is not None for output in core.step())
        if i:
            times.append((time.perf_counter() - start) / STEPS)
    for _ in core.drain():
        pass
    return {"test": "decode 1 at 0, sampled", "tokens_per_second": 1 / statistics.median(times)}


def demo_agrees() -> bool:
    """Whether the demo model's greedy replies are those of the reference backend."""
    replies = []
    for backends in ([GpuBackend()], [ReferenceBackend()]):
        with open_model("demo", backends, EngineConfig()) as model:
            replies.append(["".join(model.generate(p, temperature=0.0, max_tokens=80)) for p in PROMPTS])
    return replies[0] == replies[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    parser.add_argument("--only", nargs="*", default=None, help="names such as qwen3-1.7b-q8_0")
    options = parser.parse_args()
    backend = GpuBackend()
    described = results_file.described(gpu.describe(backend), **gpu.versions(), commit=options.commit)
    models = {}
    options.folder.mkdir(parents=True, exist_ok=True)
    for shape, preset in MODELS:
        name = f"{shape}-{preset.lower()}"
        if options.only is not None and name not in options.only:
            continue
        path = options.folder / f"{name}.gguf"
        if not path.exists():
            make(shape, preset, path)
        models[name] = measure(path, backend)
        print(name, *models[name], sep="\n  ", flush=True)
    agrees = demo_agrees()
    print("demo agrees:", agrees)
    result = {**described, "models": models, "demo_agrees_with_reference": agrees}
    results_file.write("gpu-models", result, options.output)


if __name__ == "__main__":
    main()
