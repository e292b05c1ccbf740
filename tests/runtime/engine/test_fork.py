"""Processes that are forked after a model or a product was used: they compute too, or say why they can't."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo.backends.gpu.device import torch_device
from octavo.errors import BackendError
from tests.limits import HANG_S

CPU = """
import multiprocessing, threading
import numpy as np
import octavo, octavo.ops

a = np.arange(640, dtype=np.int8).reshape(10, 64)
one = np.float32(1)

def product(_):
    return octavo.ops.int8_gemm(a, a, one, one)

def reply(_):
    return model.generate("12*7", temperature=0.0, max_tokens=4).text, model.logits([1, 2, 3])

with octavo.load("demo", device="cpu", threads=2, n_ctx=64) as model:
    wanted, (text, logits) = product(0), reply(0)
    holds, ends = threading.Event(), threading.Event()

    def hold():
        with model.engine.lock:
            holds.set()
            ends.wait()

    other = threading.Thread(target=hold)
    other.start()
    holds.wait()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all((y == wanted).all() for y in pool.map_async(product, range(2)).get(60))
        assert all(t == text and (y == logits).all() for t, y in pool.map_async(reply, range(2)).get(60))
    ends.set()
    other.join()
    assert reply(0)[0] == text
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_processes_compute_on_the_cpu() -> None:
    done = subprocess.run([sys.executable, "-c", CPU], capture_output=True, text=True, timeout=HANG_S, check=False)
    told = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert (done.returncode, told) == (0, [])


def test_a_forked_process_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device._Forked, "without_gpu", True)
    torch_device.target.cache_clear()
    with pytest.raises(BackendError, match=r"was forked from one that uses the GPU.*'spawn' or 'forkserver'"):
        torch_device.target()
