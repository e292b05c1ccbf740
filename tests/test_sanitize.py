"""`.ci/sanitize`: shards, batches, and that clean tests are not run again; a script stands in for the sanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "sanitize"


@pytest.fixture
def sanitize() -> ModuleType:
    loader = SourceFileLoader("sanitize", str(SCRIPT))
    spec = spec_from_loader("sanitize", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_shards_have_each_test_once(sanitize: ModuleType) -> None:
    ids = [f"test[{i}]" for i in range(103)]
    parts = [sanitize.batches(ids, shard, 4, ()) for shard in range(1, 5)]
    assert sorted(test for part in parts for batch in part for test in batch) == sorted(ids)
    assert {len(part) for part in parts} == {2}
    left = sanitize.batches(ids, 1, 4, parts[0][0])
    assert left == parts[0][1:]


def test_the_files_are_there(sanitize: ModuleType) -> None:
    """Those of `.ci/card`, too: of a file that is missing pytest-xdist says that there are no tests."""
    asked = re.findall(r"\S*test_\S*\.py", SCRIPT.with_name("card").read_text(encoding="utf-8"))
    said = subprocess.check_output(["bash", "-c", f"printf '%s\n' {' '.join(asked)}"], text=True)
    card = [f"tests/backends/gpu/{name}" for name in said.split()]
    assert len(card) > 20
    assert [name for name in (*sanitize.TESTS, *card) if not (SCRIPT.parents[1] / name).is_file()] == []


def run(out: Path, program: str, *arguments: str) -> Any:
    """Run racecheck on one test, or more, with a shell script in the sanitizer's place."""
    folder = out / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compute-sanitizer").write_text(f"#!/bin/sh\n{program}\n")
    (folder / "compute-sanitizer").chmod(0o755)
    env = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(SCRIPT), str(out / "kept"), *arguments, "--tool", "racecheck", "--jobs", "1"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_shard_that_is_none(tmp_path: Path) -> None:
    done = run(tmp_path, "exit 1", "5/4")
    assert done.returncode == 2
    assert "shard '5/4' (allowed: 1/4 to 4/4, say)" in done.stderr


@pytest.mark.slow
def test_what_was_clean_is_kept(tmp_path: Path) -> None:
    asked = ("1/1", "--tests", "tests/test_sanitize.py::test_shards_have_each_test_once")
    clean = 'test "$1 $2 $3" = "--tool racecheck --error-exitcode" && shift 4 && exec "$@"'
    found = run(tmp_path, 'echo "a hazard"; exit 99', *asked)
    assert found.returncode == 1
    assert "racecheck: the sanitizer found something" in found.stdout
    assert "a hazard" in next((tmp_path / "kept").glob("*.log")).read_text()
    late = run(tmp_path, clean, *asked, "--seconds", "5")
    assert (late.returncode, late.stdout.split(", ")[-1]) == (3, "1 tests of this shard left\n")
    for program in (clean, "exit 1"):  # nothing is left for the second one
        done = run(tmp_path, program, *asked)
        assert done.stdout == "racecheck 1/1: 1 tests clean so far, 0 batches not, 0 tests of this shard left\n"
        assert done.returncode == 0
