"""The documentation site: every page is in it, links out of docs/ are replaced, lists in docstrings are lists."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import octavo

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))
    import docstring_lists
    import site_links

    yield SimpleNamespace(lines=docstring_lists.lines, replaced=site_links.on_page_markdown,
                          guides=site_links.guides)
    del sys.modules["docstring_lists"]


def test_each_page_is_in_the_navigation_once(tools) -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    for page in (*pages, *tools.guides().values()):
        assert text.count(f" {page}\n") == 1, page


def test_all_public_names_are_in_the_reference() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert [name for name in octavo.__all__ if f"::: octavo.{name}\n" not in text] == []


@pytest.mark.parametrize(
    ("repository", "expected"),
    [("", "see the result, [speed](speed.md)"),
     ("https://x.org/o/", "see [the result](https://x.org/o/blob/main/bench/results/a.json), [speed](speed.md)")],
)
def test_links_out_of_docs(tools, repository: str, expected: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="gpu.md"))
    text = "see [the result](../bench/results/a.json), [speed](speed.md)"
    assert tools.replaced(text, page=page, config=SimpleNamespace(repo_url=repository)) == expected


def test_lists_of_names(tools) -> None:
    text = "What it does.\n\na, b     two sizes, of which\n         one may be 0\nlong     another\n\nRaises nothing."
    assert list(tools.lines(text)) == [
        "What it does.", "", "", "`a`, `b`", ":   two sizes, of which", "    one may be 0", "", "`long`", ":   another",
        "", "", "Raises nothing.",
    ]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [("gpu.md", "[matvec](../src/octavo/backends/gpu/matmul/README.md#mmq)", "[matvec](kernels/matmul.md#mmq)"),
     ("kernels/matmul.md", "[ops](../../../../../docs/ops.md)", "[ops](../ops.md)"),
     ("kernels/launch.md", "[kernels](../compile/README.md#on-disk)", "[kernels](compile.md#on-disk)"),
     ("decisions/1.md", "[log](../log.md)", "[log](../log.md)")],
)
def test_links_to_guides(tools, page: str, text: str, expected: str) -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert tools.replaced(text, page=shown, config=SimpleNamespace(repo_url="")) == expected
