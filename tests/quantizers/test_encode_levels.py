"""The encoders on CPUs with less: the same bytes with AVX2 as on this machine, and right ones with SSE2."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.jit import host_cpu
from tests.backends.cpu.levels import ROOT, environment

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU")

DIGESTS = """
import hashlib, json, sys
from octavo.quantizers import encode
from tests.quantizers.test_encode import samples
x = samples("heavy", 5, 768)
print(json.dumps({name: hashlib.sha256(encode(x, name)).hexdigest() for name in sys.argv[1:]}))
"""


def digests(level: str | None, cache: Path, names: list[str]) -> dict[str, str]:
    """A digest of what a process of a level encodes, for each format."""
    command = [sys.executable, "-c", DIGESTS, *names]
    done = subprocess.run(command, env=environment(level, cache), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@x86
@pytest.mark.slow
@pytest.mark.skipif(host_cpu.level() == "x86-64", reason="needs fused multiply-add, as AVX2 machines have")
def test_the_same_bytes_with_avx2(tmp_path: Path) -> None:
    names = ["Q4_K", "Q6_K", "IQ4_NL"]
    assert digests("avx2", tmp_path / "avx2", names) == digests(None, tmp_path / "host", names)


@x86
@pytest.mark.slow
@pytest.mark.parametrize("level", ["avx2", "x86-64"])
def test_all_of_it_on_lower_levels(level: str, tmp_path: Path) -> None:
    tests = [f"tests/quantizers/{name}.py" for name in ("test_encode", "test_encode_exact")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, env=environment(level, tmp_path), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"on {level}:\n{done.stdout}\n{done.stderr}"
