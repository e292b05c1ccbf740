"""Stands in for llama-cpp-python: the few calls that the worker makes, with llama.cpp's rules for the context."""

from __future__ import annotations

import sys

__version__ = "0.0.fake"


class Llama:
    def __init__(self, path: str, *, n_ctx: int, n_threads: int, **options: object) -> None:
        print(f"loading {path}")  # llama.cpp writes to both streams too
        print("a warning", file=sys.stderr)
        assert n_threads >= 1
        assert options["flash_attn"] is True, "as llama.cpp's own programs have it"
        self.n_ctx, self.n_tokens, self.asked, self.threads = n_ctx, 0, n_threads, (n_threads, n_threads)
        self.ctx = self

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        if self.n_tokens + len(tokens) > self.n_ctx:
            raise ValueError(f"{self.n_tokens + len(tokens)} tokens exceed the context window of {self.n_ctx}")
        assert all(isinstance(t, int) and t >= 0 for t in tokens)
        self.n_tokens += len(tokens)
        if len(tokens) == 1:
            assert self.threads == (self.asked, self.asked), "what is timed has the threads that were asked for"


def llama_set_n_threads(ctx: Llama, n_threads: int, n_threads_batch: int) -> None:
    assert n_threads >= 1
    assert n_threads_batch >= 1
    ctx.threads = n_threads, n_threads_batch
