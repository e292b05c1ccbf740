"""What a compiled kernel stands for, the sources of its package, and how it is compiled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from numba import njit
from numba.core.compiler import DefaultPassBuilder, Flags

from octavo.jit import compile as jit_compile
from octavo.jit import numba_pipeline


def digest(file: Path) -> str:
    jit_compile.sources.cache_clear()
    return jit_compile.digest_of_sources.__wrapped__(str(file))


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


def test_sources_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files of a package have kernels."""
    files = [tmp_path / "kernels" / f"{name}.py" for name in "abc"]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("x = 1\n")
    read, whole = list[Path](), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))
    assert len({jit_compile.digest_of_sources(str(file)) for file in files}) == 1
    assert sorted(read) == files


def test_another_function_stands_for_its_file(tmp_path: Path) -> None:
    file, beside = tmp_path / "driver.py", tmp_path / "other.py"
    file.write_text("x = 1\n")
    before = digest(file)
    beside.write_text("x = 1\n")
    assert digest(file) == before
    file.write_text("x = 2\n")
    assert digest(file) != before
    assert digest(tmp_path / "nothing.py") == ""


def test_what_is_left_out_is_in_numbas_pipeline() -> None:
    """Under another name it would run again, unnoticed."""
    made = DefaultPassBuilder.define_nopython_pipeline(SimpleNamespace(func_ir=None, flags=Flags()))
    assert {compiler_pass.name() for compiler_pass, _ in made.passes} > numba_pipeline.UNUSED


def test_functions_of_kernels_have_no_code_of_their_own() -> None:
    @jit_compile.inner
    def twice(x: int) -> int:
        return x * 2

    @jit_compile.exact
    def and_one(x: int) -> int:
        return twice(x) + 1

    @njit
    def both(x: int) -> int:
        return twice(x) + and_one(x)

    assert both(20) == 81
    for function in (twice, and_one):
        (compiled,) = function.overloads.values()
        assert isinstance(compiled.library, numba_pipeline.LinkedLibrary)
        assert compiled.library.get_pointer_to_function(compiled.fndesc.mangled_name) == 0
