"""llama.cpp with this many tokens in its cache, for depth_peer.py: the protocol of octavo/bench/peer_worker.py.

Reading thousands of tokens takes llama.cpp many minutes on a few cores. So it reads 512, whose state is copied for
other sequences, and all cells are then given to the first sequence: a token attends to each of them, as it would to
those of one long text. It runs in the interpreter that has llama-cpp-python and imports nothing else. Its argument is
JSON: path, threads, depth, n_vocab.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import time

import llama_cpp as llama

READ = 512
"""Tokens that are read; the depth is a multiple of them."""


class Deep:
    """A context whose first sequence has `depth` cells."""

    def __init__(self, path: str, threads: int, depth: int, n_vocab: int) -> None:
        self.depth, self.draw, self.n_vocab = depth, random.Random(0), n_vocab
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(path.encode(), options)
        wanted = llama.llama_context_default_params()  # flash attention is chosen by llama.cpp
        wanted.n_ctx, wanted.n_batch, wanted.n_ubatch = depth + 256, READ, READ
        wanted.n_threads, wanted.n_threads_batch = threads, os.cpu_count()
        wanted.n_seq_max, wanted.kv_unified = depth // READ, True
        self.context = llama.llama_init_from_model(self.model, wanted)
        self.fill()

    def fill(self) -> None:
        """Read a text, and make every other cell a copy of one of its."""
        self.read(READ, 0)
        size = llama.llama_state_seq_get_size(self.context, 0)
        state = (ctypes.c_uint8 * size)()
        size = llama.llama_state_seq_get_data(self.context, state, size, 0)
        memory = llama.llama_get_memory(self.context)
        for sequence in range(1, self.depth // READ):
            assert llama.llama_state_seq_set_data(self.context, state, size, sequence) == size
            llama.llama_memory_seq_cp(memory, sequence, 0, -1, -1)

    def read(self, n: int, at: int) -> None:
        """Tokens at random from position `at` on, and the last one's logits."""
        batch = llama.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i] = self.draw.randrange(self.n_vocab), at + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, i == n - 1
        assert llama.llama_decode(self.context, batch) == 0
        llama.llama_get_logits(self.context)
        llama.llama_batch_free(batch)

    def decode(self, tokens: int) -> float:
        """Seconds of that many steps, which are forgotten."""
        start = time.perf_counter()
        for i in range(tokens):
            self.read(1, READ + i)
        seconds = time.perf_counter() - start
        llama.llama_memory_seq_rm(llama.llama_get_memory(self.context), 0, READ, -1)
        return seconds


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints must not mix with the answers

    def answer(**values: object) -> None:
        out.write(json.dumps(values) + "\n")
        out.flush()

    deep = Deep(**json.loads(sys.argv[1]))
    answer(version=llama.__version__)
    for line in sys.stdin:
        command = json.loads(line)
        answer(seconds=deep.decode(command["tokens"]) if command["do"] == "decode" else 0.0)


if __name__ == "__main__":
    main()
