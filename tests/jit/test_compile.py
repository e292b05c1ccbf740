"""The sources that a compiled kernel stands for: those of its package, whose functions and constants it may use."""

from __future__ import annotations

from pathlib import Path

from octavo.jit import compile as jit_compile


def digest(file: Path) -> str:
    return jit_compile._digest.__wrapped__(str(file))


def test_a_kernel_stands_for_its_package(tmp_path: Path) -> None:
    kernel, beside, above = (tmp_path / p for p in ("kernels/a.py", "kernels/b.py", "layout.py"))
    kernel.parent.mkdir()
    for file in (kernel, beside, above):
        file.write_text("x = 1\n")
    found = [digest(kernel)]
    for file in (kernel, beside, above):
        file.write_text("x = 2\n")
        found.append(digest(kernel))
    assert len(set(found)) == 4


def test_another_function_stands_for_its_file(tmp_path: Path) -> None:
    file, beside = tmp_path / "driver.py", tmp_path / "other.py"
    file.write_text("x = 1\n")
    before = digest(file)
    beside.write_text("x = 1\n")
    assert digest(file) == before
    file.write_text("x = 2\n")
    assert digest(file) != before
    assert digest(tmp_path / "nothing.py") == ""
