"""Processes that pack the same model at once, and processes that are killed while they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.backends.cpu.packed.cache_file import CacheFile
from octavo.backends.cpu.packed.store import MappedStore
from tests.backends.cpu.packed.cached import load, matrix, require_all_equal, write
from tests.limits import HANG_S

SETUP = """
import os, random, signal, sys, time
from pathlib import Path
from octavo.backends.cpu.packed import cache_folder, store
from tests.backends.cpu.packed.cached import load
model, folder = map(Path, sys.argv[1:])
cache_folder.folder = lambda: folder
store.LEAST = 0
"""
AT_ONCE = SETUP + """
for _ in range(10):
    load(model)
    cache_folder.remove(cache_folder.entries())
load(model)
"""
KILLED = SETUP + """
load(model, keep=False)  # kernels are compiled
start = time.monotonic()
load(model)
taken = time.monotonic() - start
cache_folder.remove(cache_folder.entries())
rng = random.Random(0)
for i in range(20):
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        load(model)
        time.sleep(60)
        os._exit(0)
    time.sleep(rng.random() * taken)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    whole = [p for p in folder.glob("*") if p.suffix == ".weights"]
    print(len(whole), flush=True)
    if whole:
        store.CacheFile(str(whole[0]))  # raises for a damaged one
        whole[0].unlink()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", [matrix("Q4_K", 256, 1024, name=f"w{i}") for i in range(12)])


def run(program: str, model: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(model), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_pack_one_model_and_remove_it(weights: Path, model: Path) -> None:
    plain = load(model, keep=False)[1]
    for process in [run(AT_ONCE, model, weights) for _ in range(2)]:
        _, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
    (path,) = weights.iterdir()
    assert path.suffix == ".weights"
    store, found = load(model)
    assert isinstance(store, MappedStore)
    require_all_equal(found, plain)


def test_a_kill_at_any_moment_leaves_a_whole_file_or_none(weights: Path, model: Path) -> None:
    process = run(KILLED, model, weights)
    out, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    assert out.split().count("0") >= 3  # killed while it packed
    assert len(out.split()) == 20
    plain = load(model, keep=False)[1]
    _, packed = load(model)
    (path,) = weights.iterdir()  # what the killed ones left is gone
    CacheFile(str(path))
    store, found = load(model)
    assert isinstance(store, MappedStore)
    require_all_equal(packed, plain)
    require_all_equal(found, plain)
