"""docs/formats.md is what the table says now, and its example runs; docs/run.md has the names of options."""

import importlib.util
from pathlib import Path

import pytest

from octavo.formats import FORMATS

TOOL = Path(__file__).parents[2] / "tools" / "gen_docs.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("gen_docs", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(tool):
    assert tool.main(["--check"]) == 0


def test_a_stale_or_missing_page_is_noticed_and_mended(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "PAGE", tmp_path / "formats.md")
    assert tool.main(["--check"]) == 1
    assert "tools/gen_docs.py" in capsys.readouterr().err
    tool.PAGE.write_text(tool.page().replace("| 18 |", "| 19 |"), encoding="utf-8")
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == tool.main(["--check"]) == 0


def test_names_of_options_are_in_the_page_on_running(tool, tmp_path, monkeypatch, capsys):
    assert "`--max-new-tokens`" in tool.RUN.read_text(encoding="utf-8")
    monkeypatch.setattr(tool, "RUN", tmp_path / "run.md")
    tool.RUN.write_text("a\n<!-- options:start -->\nold\n<!-- options:end -->\nb\n", encoding="utf-8")
    assert tool.main(["--check"]) == 1
    assert "run.md is stale" in capsys.readouterr().err
    assert tool.main([]) == tool.main(["--check"]) == 0
    assert tool.RUN.read_text(encoding="utf-8").startswith("a\n<!-- options:start -->\n| option |")


def test_every_format_has_its_line_its_layout_and_its_note(tool):
    page = tool.page()
    for fmt in FORMATS:
        assert f"| [{fmt.name}](#" in page
        assert fmt.note in page
        if not fmt.is_float:
            section = page.split(f"### {fmt.name}\n")[1].split("###")[0]
            assert all(f"| `{f.name}` | {f.kind}" in section for f in fmt.fields)


def test_formulas(tool):
    by_name = {f.name: tool.formula(f) for f in FORMATS}
    assert by_name["Q4_0"] == "w[k] = d * (q - 8)"
    assert by_name["Q4_1"] == "w[k] = d * q - dmin"
    assert by_name["Q4_K"] == "w[k] = d * sc[k // 32] * q - dmin * m[k // 32]"
    assert by_name["Q6_K"] == "w[k] = d * sc[k // 16] * (q - 32)"
    assert by_name["NVFP4"] == "w[k] = d[k // 16] * table[q]"


def test_the_example_gives_what_it_says(tool):
    code = tool.page().split("```python\n")[1].split("```")[0]
    scope = {}
    exec(code, scope)
    t, p = scope["t"], scope["p"]
    assert (t.data.shape, p.q.shape, p.q.max(), p.d.shape, p.sc.shape) == ((2, 288), (2, 512), 15, (2, 2), (2, 16))
