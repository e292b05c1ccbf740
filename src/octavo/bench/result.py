"""A benchmark of a model from its options to a result: everything that is needed to read the numbers later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from octavo.backends.cores import cores
from octavo.bench import machine
from octavo.bench.limits import read_limit_of
from octavo.bench.model_bench import Progress, Trial, make_tests, peers_for, report, room, time_test
from octavo.bench.peer import PeerSubject, worker_command
from octavo.bench.render import gain_line
from octavo.bench.speculation import Drafts, compared
from octavo.bench.subject import EngineSubject, Subject, require_context
from octavo.errors import UsageError
from octavo.graph.builder import CacheType
from octavo.graph.node import Attention
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.placement import GpuLayers, backends_for
from octavo.runtime.engine.tensor_overrides import CpuExperts, overrides
from octavo.runtime.loading import load
from octavo.runtime.lora_adapters import Chosen, with_adapters

SCHEMA = 1
REPLY, PROMPT = 96, 64
"""Tokens of replies that are compared with drafts and without, unless others are asked for; and of their prompts."""


@dataclass(frozen=True)
class BenchOptions:
    """What to time: see `octavo bench model --help`. `command` is what is written down as the command."""

    prompt: int = 256
    generate: int = 64
    rounds: int = 5
    batches: Sequence[int] = (1,)
    depths: Sequence[int] = (0,)
    peer: str | None = None
    peer_python: str | None = None
    threads: int | None = None
    device: str = "auto"
    kv: CacheType = "f16"
    attention: Attention = "exact"
    gpu_layers: GpuLayers | None = None
    lora: Chosen = ()
    tensor_parallel: int = 1
    pipeline: int = 1
    n_cpu_moe: CpuExperts = 0
    override_tensor: Mapping[str, str] | None = None
    drafts: Drafts | None = None
    draft: str | None = None
    command: str = ""


def bench_model(
    path: str, options: BenchOptions, progress: Progress = lambda text: None, tell: Progress = lambda text: None,
) -> dict[str, Any]:
    """Time the model at `path`; the result as docs/benchmarks.md describes it. What took long is told when it is done.

    Raises UsageError for options out of range and for adapters beside a peer, BackendError for a device or peer that is
    not there.
    """
    drafts_alone = options.drafts is not None and not options.prompt and not options.generate
    tests = [] if drafts_alone else make_tests(options.prompt, options.generate, options.batches, options.depths)
    if options.rounds < 1:
        raise UsageError(f"-r is {options.rounds} (allowed: 1 or more)")
    if options.peer and options.lora:
        raise UsageError("--peer has no adapters (allowed: --lora without --peer)")
    threads = cores() if options.threads is None else options.threads
    with ExitStack() as stack:
        file = stack.enter_context(open_model_file(path))
        subject, seconds = _load(file, tests, options, threads, progress)
        stack.callback(subject.engine.close)
        subjects: list[Subject] = [subject]
        if options.peer:
            progress(f"loading in {options.peer}")
            subjects.append(stack.enter_context(_peer(path, subject, tests, options, threads)))
        result = _header(file, subjects, options, threads, seconds)
        result["tests"] = _run(tests, subject, subjects, options.rounds, threads, progress)
    if options.drafts is not None:
        result["speculation"] = _speculation(path, options.drafts, options, progress, tell)
    return result


def _speculation(
    path: str, drafts: Drafts, options: BenchOptions, progress: Progress, tell: Progress
) -> list[dict[str, Any]]:
    """A row for each number of replies and each way to sample them: with drafts and without."""
    tokens = options.generate or REPLY
    with load(
        path, device=options.device, threads=options.threads, n_ctx=tokens + PROMPT, cache_type=options.kv,
        gpu_layers=options.gpu_layers, n_cpu_moe=options.n_cpu_moe, override_tensor=options.override_tensor,
        max_sequences=max(options.batches), speculate=drafts.setting,
        draft=options.draft, lora=dict(options.lora) or None, pipeline=options.pipeline,
    ) as model:
        rows = list[dict[str, Any]]()
        for replies in options.batches:
            for how in ("greedy", "sampled"):
                rows.append(compared(model, drafts, how, replies, tokens, options.rounds, progress))
                tell(gain_line(rows[-1]))
        return rows


def _load(
    file: GGUFFile, tests: Sequence[Trial], options: BenchOptions, threads: int, progress: Progress
) -> tuple[EngineSubject, float]:
    model = with_adapters(read_model(file), options.lora)
    wanted = room(tests)
    require_context(model, wanted)
    # and the first decode test's, which others are compared with
    sequences = max((t.batch for t in tests), default=0) + 1
    backends, layers = backends_for(
        options.device, threads, options.gpu_layers, attention=options.attention,
        tensor_parallel=options.tensor_parallel, pipeline=options.pipeline,
    )
    config = EngineConfig(
        n_ctx=wanted, max_sequences=sequences, cache_type=options.kv, gpu_layers=layers, pipeline=options.pipeline,
        overrides=overrides(options.override_tensor, options.n_cpu_moe),
    )
    engine = Engine(model, backends, config)
    engine.lora = options.lora
    progress("loading")
    start = time.perf_counter()
    engine.load()
    return EngineSubject(engine), time.perf_counter() - start


def _peer(path: str, ours: EngineSubject, tests: Sequence[Trial], options: BenchOptions, threads: int) -> PeerSubject:
    assert options.peer is not None
    worker = {
        "path": path, "threads": threads, "n_ctx": room(tests), "n_vocab": ours.engine.model.hparams.n_vocab,
        "gpu": ours.engine.backends[0].name == "gpu", "kv": options.kv,
    }
    return PeerSubject(options.peer, worker_command(options.peer, options.peer_python, worker))


def _run(
    tests: Sequence[Trial], ours: EngineSubject, subjects: Sequence[Subject], rounds: int, threads: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    limit = read_limit_of(ours.engine.backends[0], threads)
    baseline = None
    timings = []
    for test in tests:
        timings.append(time_test(test, peers_for(test, subjects), rounds, limit, progress, baseline))
        if test.kind == "decode" and baseline is None and test is not tests[-1]:
            baseline = _baseline(test, ours.engine)
    most = max((value for t in timings for value in t.limits), default=None)
    rows: list[dict[str, Any]] = []
    for timing in timings:
        test = timing.test
        decode = test.kind == "decode"
        cost = ours.decode_cost(test.batch, test.depth) if decode else ours.prefill_cost(test.tokens)
        rows.append(report(timing, cost, most))
    return rows


def _baseline(test: Trial, engine: Engine) -> Callable[[], float]:
    """The rate of a decode test, with a sequence of its own: a machine's speed changes from one test to the next."""
    subject = EngineSubject(engine)
    subject.prepare(test.depth, test.batch)
    return lambda: test.produced / subject.decode(test.tokens)


def _header(
    file: GGUFFile, subjects: Sequence[Subject], options: BenchOptions, threads: int, load_seconds: float
) -> dict[str, Any]:
    ours, *others = subjects
    assert isinstance(ours, EngineSubject)
    parameters = sum(info.size for info in file.tensors.values())
    peers = [s for s in others if isinstance(s, PeerSubject)]
    first = ours.engine.backends[0]
    where, versions = machine.machine(), machine.versions()
    if first.name == "gpu":
        from octavo.bench import gpu

        where |= gpu.describe(first)
        versions |= gpu.versions()
    return {
        "schema": SCHEMA, "command": options.command, "date": machine.now(), "machine": where,
        "versions": {**versions, **{s.name: s.version for s in peers}}, "peers": {s.name: s.settings for s in peers},
        "device": first.name, "gpu_layers": ours.engine.gpu_layers if first.name == "gpu" else None, "threads": threads,
        "kv": options.kv, "attention": options.attention, "tensor_parallel": options.tensor_parallel,
        "pipeline": options.pipeline,
        "model": {
            "file": os.path.basename(file.path), "architecture": file.metadata.get_str("general.architecture"),
            "parameters": parameters, "bytes": file.nbytes, "bits_per_weight": 8 * file.nbytes / parameters,
        },
        "lora": [{"name": shown_name(path), "scale": scale} for path, scale in options.lora],
        "load_seconds": load_seconds, "fallbacks": list(ours.engine.schedule.fallbacks),
    }
