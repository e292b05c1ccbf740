"""llama.cpp in a process of its own: answers commands, a line of JSON each, on what was standard output.

It is run as a script, perhaps by an interpreter that lacks this package, so it imports nothing of it. Its one argument
is JSON: path, threads, n_ctx, n_vocab, gpu, kv. It says hello first: {"version": ..., "flash_attention": ...}, or
{"missing": whether it is, "error": why} where llama-cpp-python can't be imported. Commands and answers:

    {"do": "prepare", "depth": d}  ->  {}
    {"do": "prefill", "tokens": n} ->  {"seconds": s}
    {"do": "decode", "tokens": n}  ->  {"seconds": s}

The end of its input ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
"""llama.cpp's numbers of the types of a KV cache."""
FLASH_ATTENTION = True
"""What llama.cpp's own programs choose where a device has it, as a CPU does; its Python package does without."""


def drawn(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    """The tokens that `octavo.bench.subject.tokens` draws."""
    draw = random.Random(seed)
    return [draw.randrange(n_vocab) for _ in range(n)]


class PeerWorker:
    """A model in llama.cpp, and how many tokens its context is meant to hold before a decode."""

    def __init__(self, path: str, threads: int, n_ctx: int, n_vocab: int, gpu: bool, kv: str) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self.version, self.n_vocab, self.depth, self.threads = llama_cpp.__version__, n_vocab, 0, threads
        self._set_threads = llama_cpp.llama_set_n_threads
        self.model = llama_cpp.Llama(
            path, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512,
            n_gpu_layers=-1 if gpu else 0, flash_attn=FLASH_ATTENTION,
            type_k=GGML_TYPES[kv], type_v=GGML_TYPES[kv], verbose=False,
        )

    def prepare(self, depth: int) -> dict[str, float]:
        """Nobody times this, so it takes all cores."""
        self.depth = depth
        self.model.reset()
        self._set_threads(self.model.ctx, self.threads, os.cpu_count())
        if depth:
            self.model.eval(drawn(depth, self.n_vocab))
        self._set_threads(self.model.ctx, self.threads, self.threads)
        return {}

    def prefill(self, tokens: int) -> dict[str, float]:
        prompt = drawn(tokens, self.n_vocab)
        self.model.reset()
        start = time.perf_counter()
        self.model.eval(prompt)
        return {"seconds": time.perf_counter() - start}

    def decode(self, tokens: int) -> dict[str, float]:
        prompt = drawn(tokens, self.n_vocab, seed=1)
        start = time.perf_counter()
        for token in prompt:
            self.model.eval([token])
        seconds = time.perf_counter() - start
        self.model.n_tokens = self.depth  # the next eval forgets what lies beyond it
        return {"seconds": seconds}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints must not mix with the answers

    def answer(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        worker = PeerWorker(**json.loads(sys.argv[1]))
    except ImportError as error:
        answer({"missing": isinstance(error, ModuleNotFoundError), "error": str(error)})
        return
    answer({"version": worker.version, "flash_attention": FLASH_ATTENTION})
    answers: tuple[Callable[..., dict[str, float]], ...] = (worker.prepare, worker.prefill, worker.decode)
    commands = {method.__name__: method for method in answers}
    for line in sys.stdin:
        command = json.loads(line)
        answer(commands[command.pop("do")](**command))


if __name__ == "__main__":
    main()
