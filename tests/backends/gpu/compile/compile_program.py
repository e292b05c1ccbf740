"""Has kernels compiled and taken from disk without a GPU; run as a program, it prints what happened as JSON.

    OCTAVO_CACHE=... TRITON_CACHE_DIR=... python -m tests.backends.gpu.compile.compile_program

It is a program because Triton's kernels are either compiled or interpreted by a process, never both.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from octavo.backends.gpu.compile import cache as compiled
from octavo.backends.gpu.compile import pool
from octavo.backends.gpu.compile.warm_up import maker, prepare
from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.pointwise.expression_kernel import pointwise_kernel
from octavo.backends.gpu.pointwise.launch import launch_pointwise
from octavo.jit import kernel_cache
from tests.backends.gpu.launch.records import Scaled, Scaling, gluon_records_kernel, records_kernel

TARGET = GpuTarget("cuda", "ptx", True, "sm_90", "none")


class NoGpu:
    """What Triton asks of a GPU's driver; what would be launched is counted."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.launches = 0
        self.utils = self

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        assert device == 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, int, int, int, int]:
        self.loaded.append(binary)
        return object(), 1, 32, 0, 1024

    def unload_module(self, module: object) -> None: ...

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            self.launches += 1

        return launch


class Watch(logging.Handler):
    """Counts compilations and keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.compilations, self.warnings = 0, []
        triton.knobs.compilation.listener = self.count
        logging.getLogger("octavo").addHandler(self)

    def count(self, *, cache_hit: bool, **others: Any) -> None:
        assert not cache_hit
        self.compilations += 1

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())


def launches(*ops: str) -> list[Launch]:
    """Two of each op, which need one kernel; "records" and "gluon" are kernels whose arguments are records."""
    x = torch.zeros(32, 64)
    of_records = {"records": records_kernel, "gluon": gluon_records_kernel}
    if ops[0] in of_records:
        size = Scaling(64, "")
        return [
            Launch(TARGET, of_records[op], (32,), Scaled(matrix(x), None, Scaling(by, "all")), terms, matrix(x),
                   size=size, B=64)
            for op in ops for by, terms in ((2, ()), (3, ()), (2, (matrix(x),)), (2, ()))
        ]
    return [launch_pointwise(Context(TARGET), op, (y, y), y, {}) for op in ops for y in (x[:1], x)]


def processes(start: Callable[..., None], rows: dict[str, dict[str, Any]]) -> None:
    """What happens where a process of its own compiles: one that works, one that ends, and none."""
    many, python, begin, begun = pool.MANY, sys.executable, pool._start, []

    def noted() -> subprocess.Popen[bytes] | None:
        begun.append(begin())
        return begun[-1]

    def ended() -> subprocess.Popen[bytes] | None:
        return subprocess.Popen([python, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    pool.MANY = 0
    for name, how in {"apart": noted, "ended": ended, "none": begin}.items():
        folder = compiled.folder()
        assert folder is not None
        shutil.rmtree(folder)
        pool._start = how
        sys.executable = "/no/python" if name == "none" else python
        start(name, "records", "gluon")
    pool.MANY, sys.executable, pool._start = many, python, begin
    rows["apart"]["left"] = [process.poll() is None for process in begun if process is not None].count(True)


def main() -> None:
    gpu, watch, rows = NoGpu(), Watch(), {}
    driver.set_active(gpu)

    def start(name: str, *ops: str) -> None:
        """What a new process would do that runs these ops."""
        for kernel in (pointwise_kernel, records_kernel, gluon_records_kernel):
            kernel.device_caches.clear()
        maker.cache_clear()
        compiled.folder.cache_clear()
        compiled.kernel_folder.cache_clear()
        kernel_cache._said.clear()
        watch.compilations, gpu.launches, gpu.loaded, watch.warnings = 0, 0, [], []
        made = launches(*ops)
        prepare(made)
        ready = watch.compilations
        for launch in made:
            launch()
        rows[name] = {
            "compiled": ready, "later": watch.compilations - ready, "loaded": len(gpu.loaded),
            "binaries": sorted({b[:4].decode("latin-1") for b in gpu.loaded}), "launches": gpu.launches,
            "warnings": watch.warnings,
        }

    start("empty", "add", "mul")
    start("kept", "add", "mul")
    start("records", "records", "gluon")
    start("records kept", "records", "gluon")
    folder = compiled.folder()
    assert folder is not None
    first, second = sorted(entry for entry in folder.iterdir() if list(entry.glob("pointwise_kernel.*")))
    (cut,) = first.glob("*.cubin")
    cut.write_bytes(cut.read_bytes()[:100])
    (second / compiled.SUMS).unlink()
    start("damaged", "add", "mul")
    start("repaired", "add", "mul")
    processes(start, rows)
    shutil.rmtree(folder)
    for path in Path(triton.knobs.cache.dir).rglob("*.*"):
        path.write_bytes(b"")
    start("triton's damaged", "add")
    with tempfile.NamedTemporaryFile() as file:
        shutil.rmtree(folder)
        triton.knobs.cache.dir = f"{file.name}/cache"
        start("triton's not writable", "add")
        kernel_cache.cache_root = lambda: Path(file.name)
        start("not writable", "add")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
