"""`import octavo` and `octavo --help` stay light: what is heavy comes when first used. No imports form a circle."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import octavo

HEAVY = {
    "torch", "triton", "numba", "tokenizers", "jinja2", "gguf", "threadpoolctl", "transformers", "huggingface_hub",
    "ssl",
}


def modules_after(code: str) -> set[str]:
    """The modules that are there after `code`."""
    listing = "import sys; print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


def imported(code: str) -> set[str]:
    """The modules that are there after `code`, by their first names."""
    return {name.partition(".")[0] for name in modules_after(code)}


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


def test_what_reads_folders_comes_for_folders_alone() -> None:
    loaded = modules_after("import octavo; octavo.load('demo', device='reference').close()")
    assert "octavo.huggingface.model_file" in loaded
    files = {"octavo.huggingface.folder", "octavo.io.safetensors.safetensors_file"}
    assert not loaded & {*files, "huggingface_hub", "numba"}


def test_a_run_imports_its_own_command_architecture_and_backend_alone() -> None:
    run = "import sys; sys.argv = 'octavo run demo hi -n 1 --temp 0'.split(); from octavo.cli import main"
    loaded = modules_after(f"{run}\ntry: main()\nexcept SystemExit: pass")
    assert "octavo.backends.cpu.backend" in loaded
    assert not loaded & {"pydantic", "gguf", "torch", "huggingface_hub", "octavo.backends.gpu.backend"}
    assert not loaded & {"octavo.models.shared.eagle3", "octavo.graph.shard", "octavo.runtime.cache.tiers"}
    commands = {name.split(".")[2] for name in loaded if name.startswith("octavo.cli.")}
    assert not commands & {"bench", "embed", "evaluate", "inspect", "quantize", "serve", "warm", "batch_command"}
    families = ("dense", "encoder", "hybrid", "moe", "recurrent")
    found = [name for name in loaded if name.startswith(tuple(f"octavo.models.{family}." for family in families))]
    assert len(found) == 1


def test_extras_of_a_server_come_where_they_are_asked_for() -> None:
    assert not imported("import octavo.cli.serve.command, octavo.server.worker, octavo.server.app") & {"zmq"}


def test_dir_lists_what_is_public() -> None:
    import octavo

    listed = {name for name in dir(octavo) if not name.startswith("__")}
    assert listed - {"torch"} == {
        *octavo.__all__, "bench", "errors", "evals", "formats", "huggingface", "io", "ops", "quantizers", "runtime",
        "text",
    }
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


IMPORT = re.compile(r"^ *(?:from (\S+) import (\([^)]*\)|.+)|import (.+))$", re.MULTILINE)


def imports_of_modules() -> dict[str, set[str]]:
    """Each module of the package with those of the package that it imports anywhere, for types or in functions too."""
    root = Path(octavo.__file__).parent
    files = {".".join(p.relative_to(root.parent).with_suffix("").parts): p for p in root.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        imported = set()
        code = re.sub('""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
        for source, members, modules in IMPORT.findall(code):
            of_source = {f"{source}.{member}" for member in re.findall(r"(\w+)(?: as \w+)?", members)}
            imported |= of_source & files.keys() or {source}
            imported |= set(re.findall(r"[\w.]+", modules))
        found[name] = imported & files.keys() - {name}
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = imports_of_modules()
    assert "octavo.runtime.engine.engine" in found["octavo.runtime"]
    TopologicalSorter(found).prepare()  # CycleError names the modules


PACKAGES = [
    "", ".evals", ".evals.report", ".huggingface", ".io.hub", ".ops", ".quantizers", ".runtime", ".runtime.engine",
    ".runtime.grammar", ".runtime.sampling",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_all_public_names_are_there(package: str) -> None:
    """Each is what type checkers take it for."""
    module = import_module(f"octavo{package}")
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert module.__file__ is not None
    for home, names in re.findall(
        r"^ *from (octavo\S+) import (.+)$", Path(module.__file__).read_text("utf-8"), re.MULTILINE
    ):
        for name in names.split(", "):
            assert getattr(module, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match=f"module 'octavo{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
