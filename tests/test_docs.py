"""README.md and docs/: each Python snippet compiles, files that are named are there, and links lead somewhere.

Snippets that need no files of the reader are run.
"""

from __future__ import annotations

import ast
import doctest
import pkgutil
import re
from pathlib import Path

import pytest

from octavo.formats.activation import ACTIVATIONS
from octavo.runtime import Model

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "src").rglob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *GUIDES]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OF_THE_READER = re.compile(r"[\"'][^\"'\n]*\.(?:gguf|txt|raw|html|safetensors)[\"']|gpu|https?://|/path/|Qwen/|folder")
"""What a snippet names that is not there: a file, a GPU, a network."""


def snippets() -> list[object]:
    """(page, line, code) of each block."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            slow = [pytest.mark.slow] if "sensitivities" in match[1] else []
            found.append(pytest.param(page.name, line, match[1], id=f"{page.name}:{line}", marks=slow))
    return found


PACKAGES = sorted((ROOT / "src/octavo").rglob("__init__.py"))


def test_where_a_package_says_to_begin_is_there() -> None:
    said = {package: re.search(r"Begin with\s+`([\w/]+)", package.read_text("utf-8")) for package in PACKAGES}
    begins = [package.parent / match[1] for package, match in said.items() if match]
    assert len(begins) > 10
    assert [str(path) for path in begins if not path.with_name(f"{path.name}.py").exists() and not path.is_dir()] == []


@pytest.mark.parametrize(("page", "line", "code"), snippets())
def test_snippet(page: str, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ">>>" in code:
        test = doctest.DocTestParser().get_doctest(code, {}, page, page, line)
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0
        return
    compiled = compile("\n" * (line - 1) + code, page, "exec")
    if OF_THE_READER.search(re.sub(r"#.*", "", code)):
        assert "import " in code, "a reader can't run it without its imports"
        return
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compiled, names)
    for made in names.values():
        if isinstance(made, Model):
            made.close()
    assert not list(tmp_path.iterdir())


NAMED = re.compile(r"`([\w./<>-]*\w\.py|[\w./-]+/)`")
HISTORY = {"log.md"}
"""Pages on what was tried, with files that may have gone since."""


def named_files() -> list[tuple[str, str]]:
    """(page, name) of each file and folder of the project that a page names."""
    pages = [*PAGES, ROOT / "CONTRIBUTING.md"]
    found = {(p.name, m[1]) for p in pages if p.name not in HISTORY for m in NAMED.finditer(p.read_text("utf-8"))}
    return sorted(pair for pair in found if "<" not in pair[1])


def test_named_files_are_there() -> None:
    """A name may begin at any folder of the project's, as `quantizers/` or `graph/plan.py` do."""
    tops = ("src", "tests", "bench", "tools", "docs")
    there = {f"/{path.as_posix()}" + "/" * path.is_dir() for top in tops for path in (ROOT / top).rglob("*")}
    ends = {path[at:] for path in there for at, letter in enumerate(path[:-1]) if letter == "/"}
    missing = [f"{page} names {name}" for page, name in named_files() if f"/{name}" not in ends]
    assert missing == []


DEFINED = re.compile(r"`([\w./]+\.py)`: (`\w+`(?:, `\w+`)*)")
PUBLIC = re.compile(r"`(octavo\.(?:backends|evals|formats|ops|quantizers|torch)(?:\.\w+)*)`")
GUIDE = ROOT / "docs" / "from-llama-cpp.md"
KNOWN = """mul_mat_vec_q quantize_mmq_q8_1 load_tiles vec_dot dequant_per_group lop3 ldmatrix cp.async split-K half2 vdr
shfl MFMA wavefront Marlin persistent occupancy coalescing ggml_backend_sched llama-simple llama-cli llama-quantize
int8_gemm_qdq nsys rocprof 28.1% dp4a mma.sync quantize_q8_1 mmq_get_q8_1_ds_layout stream-k""".split()
"""Terms that a reader who knows llama.cpp, CUDA or QQQ may look for."""


def definitions(path: Path) -> set[str]:
    """Functions, classes and constants at the top of a module."""
    found = set[str]()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_files_are_defined_there(page: Path) -> None:
    """`file.py`: `a`, `b` says that the file with this end of a path, of which there is one, defines both."""
    text = page.read_text("utf-8")
    for end, names in DEFINED.findall(text):
        (path,) = (p for p in (ROOT / "src" / "octavo").rglob("*.py") if p.as_posix().endswith(f"/{end}"))
        assert set(re.findall(r"\w+", names)) <= definitions(path), end
    for dotted in PUBLIC.findall(text):
        assert pkgutil.resolve_name(dotted) is not None


def test_names_of_llama_cpp_lead_to_files_and_commands() -> None:
    rows = [line.strip("|").split(" | ") for line in prose(GUIDE) if line.startswith("| ")]
    rows = [row for row in rows if row[1].strip() != "here"]
    assert len(rows) > 60
    for row in rows:
        assert len(row) == 3, row
        assert re.search(r"\.py`|`octavo|`(?:tl|gl)\.|`num_warps`|`PDL`", row[1]), row
    there = " ".join(row[0] for row in rows)
    assert [word for word in KNOWN if word not in there] == []


def test_formats_of_activations_that_a_page_names_are_there() -> None:
    text = (ROOT / "docs" / "formats.md").read_text("utf-8").partition("## Formats of activations")[2]
    named = set(re.findall(r"`(\w+_(?:token|static|mmq))`", text))
    assert named <= {activation.name for activation in ACTIVATIONS}
    assert named


LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def prose(page: Path) -> list[str]:
    """The lines of a page that are not in a block of code."""
    lines, is_code = [], False
    for line in page.read_text("utf-8").splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            lines.append(line)
    return lines


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes them anchors."""
    headings = (line.lstrip("#").strip().lower() for line in prose(page) if line.startswith("#"))
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    lost = []
    for path, anchor in LINK.findall("\n".join(prose(page))):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(f"{path}#{anchor}")
    assert not lost
