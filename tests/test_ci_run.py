"""`.ci/run`: what is run beside each other after the tests; scripts stand in for all that it calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """case "$*" in
*host_cpu*) echo avx512 ;;
*) echo "python $*"; [ "$*" != "$FAILS" ] ;;
esac"""
OTHERS = ("pythons", "tritons", "linters", "legacy", "arm", "deploy")

pytestmark = pytest.mark.skipif(os.name != "posix" or shutil.which("nproc") is None, reason="CI's is Linux")


def run(folder: Path, fails: str) -> tuple[int, str]:
    scripts = {"bin/pip": "true", "bin/mypy": "true", "bin/python": PYTHON}
    scripts |= {f".ci/{name}": f"echo $INSTALLED {name}; [ {name} != '{fails}' ] || exit 255" for name in OTHERS}
    for name, text in scripts.items():
        script = folder / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    (folder / "integrations/llm-octavo").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    path = f"{folder}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": "x", "CI": "1", "FAILS": fails}
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("fails", ["", "tritons", "deploy", "-m pytest -n 0 integrations/llm-octavo"])
def test_one_that_fails_fails_all_and_stops_none(tmp_path: Path, fails: str) -> None:
    status, said = run(tmp_path, fails)
    assert (status == 0) == (not fails)
    assert said.startswith("python -m pytest\n")
    assert [name for name in OTHERS if f"\n1 {name}\n" not in said] == []
    assert "\npython -m pytest -m slow -k avx2 and" in said
    assert said.count(", status 0\n") == said.count(", status ") - bool(fails)


def test_where_the_tests_fail_nothing_else_runs(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-m pytest")
    assert (status, said) == (1, "python -m pytest\n")
