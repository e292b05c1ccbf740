"""Kernels are compiled all at once, kept on disk, and compiled again where what was kept is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.runtime import build

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu.backend import GpuBackend
from octavo.backends.gpu.compile import cache as compiled
from octavo.backends.gpu.launch import call
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.template import Templates
from octavo.graph.node import Node
from octavo.graph.protocol import Call
from octavo.runtime.loading import load

KEPT = {"compiled": 0, "later": 0, "loaded": 2, "binaries": ["\x7fELF"], "launches": 4, "warnings": []}
ONE = {**KEPT, "compiled": 1, "loaded": 1, "launches": 2}


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compiled")
    env = {**os.environ, "OCTAVO_CACHE": str(folder / "octavo"), "TRITON_CACHE_DIR": str(folder / "triton")}
    env.pop("TRITON_INTERPRET", None)
    program = [sys.executable, "-m", "tests.backends.gpu.compile.compile_program"]
    root = Path(__file__).parents[4]
    run = subprocess.run(program, env=env, cwd=root, check=True, stdout=subprocess.PIPE)
    rows: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return rows


@pytest.mark.slow
def test_all_kernels_of_launches_are_compiled_before_them(happened: dict[str, dict[str, Any]]) -> None:
    assert happened["empty"] == {**KEPT, "compiled": 2}


def test_a_kernel_that_is_on_disk_is_not_compiled(happened: dict[str, dict[str, Any]]) -> None:
    assert happened["kept"] == KEPT


def test_kernels_of_records_are_kept_for_each_constant(happened: dict[str, dict[str, Any]]) -> None:
    """Of Triton and of Gluon, for two constants, and for one term more."""
    every = {**KEPT, "loaded": 6, "launches": 8}
    assert happened["records"] == {**every, "compiled": 6}
    assert happened["records kept"] == every


def test_kernels_are_compiled_by_processes_that_end(happened: dict[str, dict[str, Any]]) -> None:
    """Of Triton and of Gluon; by this one where these fail."""
    every = {**KEPT, "loaded": 6, "launches": 8}
    assert happened["apart"] == {**every, "left": 0}
    assert happened["ended"] == happened["none"] == {**every, "compiled": 6}


def test_damaged_kernels_are_compiled_again_with_one_warning(happened: dict[str, dict[str, Any]]) -> None:
    row = happened["damaged"]
    (warning,) = row["warnings"]
    assert "is compiled again" in warning
    assert {**row, "warnings": []} == {**KEPT, "compiled": 2}
    assert happened["repaired"] == KEPT


def test_what_is_damaged_in_tritons_cache_is_not_used(happened: dict[str, dict[str, Any]]) -> None:
    row = happened["triton's damaged"]
    assert len(row["warnings"]) <= 1  # it may not even notice
    assert {**row, "warnings": []} == ONE


@pytest.mark.parametrize(("case", "warning"), [
    ("triton's not writable", "Triton's cache in"),
    ("not writable", "compiled kernels can't be kept in"),
])
def test_folders_that_cannot_be_written(case: str, warning: str, happened: dict[str, dict[str, Any]]) -> None:
    row = happened[case]
    (said,) = row["warnings"]
    assert said.startswith(warning)
    assert {**row, "warnings": []} == ONE


def test_loading_makes_all_launches_of_its_plan_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing for the CPU, where no node runs. Of a node that is bound again the last launches count."""
    prepared: list[Launch] = []
    waited: list[bool] = []
    of_nodes: dict[Node, list[Launch]] = {}
    launches = GpuBackend.launches

    def noted(self: GpuBackend, context: Context, node: Node, inputs: Any, out: Any) -> list[Call]:
        calls = launches(self, context, node, inputs, out)
        of_nodes[node] = [c for c in calls if isinstance(c, Launch)]
        return calls

    monkeypatch.setattr(GpuBackend, "launches", noted)
    monkeypatch.setattr(Templates, "calls", lambda self, c, b: self._bind(c, b))  # launches of its own for each node
    making = SimpleNamespace(finish=lambda: waited.append(True))
    monkeypatch.setattr(call, "PendingKernels", lambda launches: prepared.extend(launches) or making)
    monkeypatch.setattr("octavo.backends.gpu.backend.interpreted", lambda: False)
    for name in ("supports", "load", "cache", "kernel_calls", "weight_bytes", "cache_bytes"):
        monkeypatch.setattr(CpuBackend, name, None)  # these import Numba
    with load("demo", device="gpu") as model:
        assert len(prepared) > 100
        assert prepared == [each for of_node in of_nodes.values() for each in of_node]
        assert waited == [True]
        assert "_binders" not in vars(model.engine.backends[1])


def test_an_interrupted_kernel_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def interrupted(self: Path) -> None:
        mkdir(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled.save(tmp_path / "kernel", SimpleNamespace(metadata=SimpleNamespace(target=GPUTarget("cuda", 90, 32))))
    assert os.listdir(tmp_path) == []


def test_modules_of_one_name_keep_their_functions() -> None:
    """Python gives a module that is loaded again the object of the last one of its name."""
    shared = SimpleNamespace()

    def load(name: str, path: str) -> SimpleNamespace:
        shared.launch = path
        return shared

    loaded = compiled.LoadedApart(load)
    first, second = loaded("__triton_launcher", "one"), loaded("__triton_launcher", "two")
    assert (first.launch, second.launch) == ("one", "two")
    assert isinstance(build._load_module_from_path, compiled.LoadedApart)
