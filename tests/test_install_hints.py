"""How optional parts are installed: in a form that works without the package being on an index."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_text_names_the_package_on_an_index() -> None:
    named = [
        str(path)
        for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("src/octavo/**/*.py"))
        if "octavo[" in path.read_text(encoding="utf-8")
    ]
    assert named == []
