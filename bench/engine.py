"""Measures an engine alone with several replies at once; writes bench/results/engine-<model>-<date>.json.

    python bench/engine.py MODEL [-c 1,8,32,128] [--device cpu|gpu] [--sampled] [--tokens N] [--commit HASH] [-o FOLDER]

Workload a is that of `octavo bench serve`: prompts of 128 tokens and replies of 128; as one ends the next one begins.
Each number of replies runs twice, and the second time counts. `warm_up` is the seconds in which the engine makes and
captures all sizes of steps before the first request, `first` those of the sizes after which a server answers, and
`steps_mib` what these steps take of the device's memory, beside weights and cache. Milliseconds and tokens a second:

    rate      tokens of replies a second, from the first request to the last token
    ttft      from a request to its first token (p50); it never waits for a place
    itl       from a token of a reply to the next one (p50, p99)
    step      of all steps (p50)
    host      what of a step is not waiting for a device, or computing on the CPU (mean)
    device    a step of as many replies that have no context, one after the other, the host not waiting for any
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import octavo
import results_file
from octavo.bench import machine
from octavo.bench.empty_steps import reply_seconds
from octavo.graph.plan import StepHandle
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request

WORKLOADS = {"a": (128, 128)}
"""Tokens of a prompt, and of a reply."""
GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)
ITL_TARGET = {"cpu": 0.25, "gpu": 0.025}


class Apart:
    """Seconds of an engine's steps that are not the host's: of its kernels on the CPU, or of waiting for a device."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0
        executor = engine.load()
        if engine.on_device:
            launch = engine.launch
            engine.launch = lambda *given, **more: self._read_later(launch(*given, **more))  # type: ignore[method-assign]
        else:
            executor.launch = self._timed(executor.launch)  # type: ignore[method-assign]
            executor.run = self._timed(executor.run)  # type: ignore[method-assign]

    def _read_later(self, handle: StepHandle) -> StepHandle:
        return dataclasses.replace(handle, read=self._timed(handle.read))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*given, **more)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class Times:
    """When tokens of requests came."""

    def __init__(self) -> None:
        self.sent: dict[Request, float] = {}
        self._last: dict[Request, float] = {}
        self.first: list[float] = []
        self.gaps: list[float] = []
        self.steps: list[float] = []

    def token(self, request: Request, now: float) -> None:
        if request in self._last:
            self.gaps.append(now - self._last[request])
        else:
            self.first.append(now - self.sent[request])
        self._last[request] = now


def requests(model: Model, workload: str, params: SamplingParams, tokens: int | None) -> Iterator[Request]:
    """Prompts that have no beginning in common."""
    rng, (n_in, n_out) = np.random.default_rng(0), WORKLOADS[workload]
    most = min(model.tokenizer.n_vocab, 30000)
    for i in count():
        how = dataclasses.replace(params, seed=i)
        yield Request(rng.integers(most // 4, most, n_in).tolist(), make_sampler(how), tokens or n_out)


def run(core: EngineCore, given: Iterator[Request], replies: int, total: int) -> tuple[Times, float]:
    """Some requests, a given number of which run at a time; and seconds."""
    times, left, going = Times(), total, 0
    start = time.perf_counter()
    while left or going:
        while left and going < replies:
            request = next(given)
            times.sent[request] = time.perf_counter()
            core.add(request)
            left, going = left - 1, going + 1
        begun = time.perf_counter()
        outputs = core.step()
        now = time.perf_counter()
        times.steps.append(now - begun)
        for output in outputs:
            if output.token is not None:
                times.token(output.request, now)
            if output.finish_reason == "error":
                raise SystemExit(f"a reply failed: {output.request.failure}")
            going -= output.finish_reason is not None
    return times, time.perf_counter() - start


def case(core: EngineCore, model: Model, replies: int, asked: argparse.Namespace, apart: Apart) -> dict[str, Any]:
    given = requests(model, asked.workload, SAMPLED if asked.sampled else GREEDY, asked.tokens)
    run(core, given, replies, replies)
    apart.seconds = 0.0
    times, seconds = run(core, given, replies, max(3 * replies, 4))
    tokens = len(times.first) + len(times.gaps)
    host = (sum(times.steps) - apart.seconds) / len(times.steps)
    p50, p99 = np.percentile(times.gaps, [50, 99])
    found = {
        "rate": tokens / seconds, "ttft_p50": 1e3 * statistics.median(times.first), "itl_p50": 1e3 * p50,
        "itl_p99": 1e3 * p99, "step_p50": 1e3 * statistics.median(times.steps), "host": 1e3 * host,
        "device": 1e3 * reply_seconds(model.engine, replies), "steps": len(times.steps),
    }
    return {"replies": replies, **{name: round(float(value), 3) for name, value in found.items()}}


def used_mib(engine: Engine, *, unused: bool = True) -> int:
    """Of the device's memory, with what torch keeps of it `unused` or without; 0 where there is no card."""
    if not engine.on_device:
        return 0
    import torch

    if not torch.cuda.is_available():
        return 0
    if not unused:
        torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free) >> 20


def warmed_up(model: Model, itl_target: float) -> tuple[EngineCore, dict[str, Any]]:
    """An engine core whose sizes of steps are all captured, and `first`, `warm_up` and `steps_mib` of that."""
    core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, itl_target=itl_target)
    reply_seconds(model.engine, 1)  # after which weights lie as products read them
    loaded, begun = used_mib(model.engine, unused=False), time.perf_counter()
    core.begin_warm_up()
    first = time.perf_counter() - begun
    core.warm_up()
    warm_up = time.perf_counter() - begun
    gc.freeze()  # as the process of a server's engine does
    return core, {"first": first, "warm_up": warm_up, "steps_mib": used_mib(model.engine) - loaded}


def _card() -> dict[str, Any]:
    from octavo.backends.gpu import GpuBackend
    from octavo.bench import gpu

    return gpu.describe(GpuBackend())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-c", "--replies", default="1,8,32,128", help="at a time, several numbers")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--sampled", action="store_true", help="draw tokens (default: the likeliest)")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="a")
    parser.add_argument("--tokens", type=int, help="of a reply, in place of the workload's")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS, help="folder for the result")
    asked = parser.parse_args()
    numbers = [int(n) for n in asked.replies.split(",")]
    cases = []
    with octavo.load(
        asked.model, device=asked.device, threads=asked.threads, n_ctx=512, max_sequences=max(numbers), speculate="off"
    ) as model:
        core, start = warmed_up(model, ITL_TARGET[asked.device])
        print("answers after {first:.1f} s, ready after {warm_up:.1f} s, steps take {steps_mib} MiB".format(**start))
        apart = Apart(model.engine)
        for replies in numbers:
            cases.append(case(core, model, replies, asked, apart))
            print(cases[-1], flush=True)
    described = results_file.described(_card() if asked.device == "gpu" else None, commit=asked.commit)
    name = f"engine-{Path(asked.model).stem}" + ("-sampled" if asked.sampled else "")
    results_file.write(
        name,
        {
            **described,
            "workload": asked.workload,
            "sampled": asked.sampled,
            **start,
            "cases": cases,
        },
        asked.output,
    )


if __name__ == "__main__":
    main()
