"""A platform wheel's kernels, and what its files say of it."""

from __future__ import annotations

import sys
import zipfile
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from octavo.jit.host_cpu import FEATURES, target_of

TOOL = Path(__file__).parents[1] / "tools" / "build_wheel.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = util.spec_from_file_location("build_wheel", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_are_in_the_wheel(tool: Any, tmp_path: Path) -> None:
    wheel, kernels = tmp_path / "octavo-0.1.0-py3-none-any.whl", tmp_path / "kernels"
    info = "octavo-0.1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("octavo/__init__.py", "x = 1\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "octavo/__init__.py,sha256=x,6\n")
    (kernels / "0123").mkdir(parents=True)
    (kernels / "0123" / "abc.kernel").write_bytes(b"code")
    (kernels / "0123" / "abc.lock").write_bytes(b"")
    made = tool.pack(wheel, kernels, tmp_path)
    python = "cp{}{}".format(*sys.version_info[:2])
    assert made.name.startswith(f"octavo-0.1.0-{python}-{python}-")
    with zipfile.ZipFile(made) as file:
        names = file.namelist()
        assert names == ["octavo/__init__.py", f"{info}/WHEEL", "octavo/jit/shipped/0123/abc.kernel", f"{info}/RECORD"]
        about = file.read(f"{info}/WHEEL").decode()
        assert f"Tag: {python}-{python}-" in about
        assert "Root-Is-Purelib: false" in about
        record = file.read(f"{info}/RECORD").decode().splitlines()
        assert [line.split(",")[0] for line in record] == names
        # echo -n code | openssl sha256 -binary | basenc --base64url
        assert "octavo/jit/shipped/0123/abc.kernel,sha256=VpTQii5T_8rgwxA-Wtb2B2q9lg6x-KVldwQLwQKPcCs,4" in record[2]


def test_another_cpu_of_a_level(tool: Any) -> None:
    """Its kernels have the names that they would get there."""
    found = tool.of_cpu("znver4=avx512")
    names = [feature[1:] for feature in found["NUMBA_CPU_FEATURES"].split(",")]
    there = ",".join(f"{'+' if name in FEATURES['avx512'] else '-'}{name}" for name in names)
    assert found == {"NUMBA_CPU_NAME": "znver4", "NUMBA_CPU_FEATURES": target_of(there)}
    with pytest.raises(SystemExit, match=r"--cpu is 'znver4' \(allowed: NAME=LEVEL, with LEVEL one of amx"):
        tool.of_cpu("znver4")
