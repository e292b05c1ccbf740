"""Each file of kernels begins with what it is, how it is divided, what bounds it, what was tried, and its naive twin.

Algorithm:  its name in the field, with a paper or a public kernel
Tile:       a picture
Bound:      bytes, instructions or latency, with the measured share and where that is from, or that it was not measured
Tried:      entries of docs/log.md by the beginning of their titles, or "nothing else"
Twin:       functions in NumPy that state what is computed, which tests hold the kernels to
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BACKENDS = ROOT / "src/octavo/backends"
PARTS = ("Algorithm", "Tile", "Bound", "Tried", "Twin")
PART = re.compile(rf"^({'|'.join(PARTS)}):", re.MULTILINE)
TITLES = [re.sub(r"\s+", " ", title) for title in re.findall(
    r"^- \*\*(.+?)\*\*", (ROOT / "docs/log.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)]
KERNEL = re.compile(r"^@(?:triton|gluon)\.jit\ndef \w+_kernel\(|^@kernels\(", re.MULTILINE)
FILES = [
    path for room in ("gpu", "cpu") for path in sorted((BACKENDS / room).rglob("*.py"))
    if path.name.endswith("kernel.py") or KERNEL.search(path.read_text("utf-8"))
]


def parts_of(text: str) -> dict[str, str]:
    """The parts of a file's docstring; a part ends where the next one begins, the last with its paragraph."""
    head = ast.get_docstring(ast.parse(text)) or ""
    found = PART.split(head)
    parts = dict(zip(found[1::2], found[2::2], strict=True))
    parts |= {"Twin": parts["Twin"].partition("\n\n")[0]} if "Twin" in parts else {}
    assert tuple(found[1::2]) == PARTS, "the five parts, in this order, each once"
    return parts


def titles_in(text: str) -> list[str]:
    """What is quoted behind a mention of docs/log.md."""
    flat = re.sub(r"\s+", " ", text)
    return re.findall(r'"([^"]+)"', "".join(flat.partition("docs/log.md")[1:]))


def check_title(title: str) -> None:
    assert sum(known.startswith(title) for known in TITLES) == 1, f"docs/log.md: {title!r}"


def check_twin(path: str) -> None:
    """It is a function of a module of this repository, or of NumPy's."""
    module, _, name = path.rpartition(".")
    if module == "numpy":
        assert callable(getattr(importlib.import_module(module), name))
        return
    below = "src" if path.startswith("octavo.") else "."
    while module:  # a method is in a class of the module
        file = ROOT / below / f"{module.replace('.', '/')}.py"
        if file.exists():
            break
        module = module.rpartition(".")[0]
    assert module, path
    names = path.removeprefix(f"{module}.").split(".")
    body: list[ast.stmt] = ast.parse(file.read_text("utf-8")).body
    for name in names:
        (found,) = (n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name)
        body = found.body
    assert isinstance(found, ast.FunctionDef), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(BACKENDS).as_posix())
def test_a_kernel_file_says_what_it_is(path: Path) -> None:
    parts = parts_of(path.read_text("utf-8"))
    assert len(parts["Algorithm"].strip()) > 10
    picture = [line for line in parts["Tile"].split("\n")[1:] if line.strip()]
    assert picture
    assert all(line.startswith("    ") for line in picture)
    bound = parts["Bound"]
    assert re.match(r"\s*(?:bytes|instructions|latency)\b", bound)
    results, titles = re.findall(r"bench/results/[\w.-]+\.json", re.sub(r"-\n\s+", "-", bound)), titles_in(bound)
    assert [name for name in results if not (ROOT / name).exists()] == []
    assert results or titles or re.search(r"not\s+measured", bound, re.IGNORECASE)
    tried = titles_in(parts["Tried"])
    assert tried or parts["Tried"].strip().startswith("nothing else")
    for title in titles + tried:
        check_title(title)
    twins = re.findall(r"`([\w.]+)`", parts["Twin"])
    assert twins
    for twin in twins:
        check_twin(twin)


def test_all_kernels_are_found() -> None:
    names = {path.relative_to(BACKENDS).as_posix() for path in FILES}
    assert len(names) > 60
    assert {"gpu/attention/kernel.py", "gpu/attention/rotation.py", "cpu/device/bandwidth.py"} < names


@pytest.mark.parametrize("wrong", ["octavo.backends.reference.ops.no_op", "tests.no_file.f", "numpy.no_function"])
def test_a_twin_that_does_not_exist_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, AttributeError, ValueError)):
        check_twin(wrong)
