"""`import octavo` and `octavo --help` stay light: what is heavy is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "numba", "tokenizers", "jinja2", "gguf", "threadpoolctl", "transformers"}


def imported(code: str) -> set[str]:
    """The modules that are there after `code`, by their first names."""
    listing = "import sys; print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in result.stderr.split()}


def test_import_octavo() -> None:
    assert not imported("import octavo; octavo.__version__") & (HEAVY | {"numpy", "typer", "rich"})


def test_public_names_come_when_they_are_used() -> None:
    loaded = imported("import octavo; octavo.Tokenizer, octavo.ChatTemplate, octavo.SamplingParams, octavo.load")
    assert "numpy" in loaded
    assert not loaded & HEAVY


def test_modules_come_when_they_are_used() -> None:
    modules = "bench errors evals formats huggingface io ops quantizers runtime text".split()
    code = f"import octavo, pydoc; [getattr(octavo, m) for m in {modules}]; pydoc.render_doc(octavo); dir(octavo)"
    assert not imported(code) & HEAVY


def test_dir_lists_what_is_public() -> None:
    import octavo

    listed = {name for name in dir(octavo) if not name.startswith("__")}
    assert listed - {"torch"} == {
        *octavo.__all__, "bench", "errors", "evals", "formats", "huggingface", "io", "ops", "quantizers", "runtime",
        "text",
    }  # fmt: skip
    assert all(getattr(octavo, name) is not None for name in listed)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["inspect", "--help"], ["--version"]])
def test_help(arguments: list[str]) -> None:
    run = f"import contextlib, sys; sys.argv = ['octavo', *{arguments}]; from octavo.cli import main"
    assert not imported(f"{run}\nwith contextlib.suppress(SystemExit): main()") & (HEAVY | {"numpy"})


def test_unknown_names_are_attribute_errors() -> None:
    import octavo

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        octavo.nothing  # noqa: B018
    assert all(getattr(octavo, name) is not None for name in octavo.__all__)
