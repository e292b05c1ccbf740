"""The Python snippets of README.md and docs/: each compiles, and those that need no files of the reader run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from octavo.runtime import Model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize(("page", "line", "code"), snippets())
def test_snippet(page: str, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ">>>" in code:
        assert doctest.DocTestParser().get_examples(code, page)
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
