"""The page's table of the demo model quantized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.conftest import ROOT


@pytest.fixture
def tool(load_tool: Callable[[str, str], ModuleType]) -> ModuleType:
    return load_tool("gen_demo_table", "demo")


def row(name: str, bits: float, kl: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "target_bpw": None, "imatrix": "imatrix" in name, "bits_per_weight": bits,
        "file_bytes": 4_240_000, "kl": [kl, 0.0002], "perplexity": [1.23456, 0.01], "accuracy": 0.991, **more,
    }


def test_the_page_has_the_newest_rows(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([]) == 1
    assert "run python bench/demo_presets.py" in capsys.readouterr().err
    rows = [row("Q4_K_M", 4.82, 0.00812), row("F16", 16, 0.0), row("--target-bpw 4.5, imatrix", 4.5, 0.005)]
    (tmp_path / "demo-presets-2025-01-01.json").write_text(json.dumps({"rows": [row("old", 1, 1)]}))
    (tmp_path / "demo-presets-2025-01-02.json").write_text(json.dumps({"rows": rows}))
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("# Title\n<!-- demo:start -->\n| preset | ")
    assert text.endswith("\n<!-- demo:end -->\nrest\n")
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| F16 | 16.00 | 4.24 MB | 0 | 1.23456 | 99.1% |",
        "| Q4_K_M | 4.82 | 4.24 MB | 0.00812 ± 0.00020 | 1.23456 | 99.1% |",
        "| `--target-bpw 4.5`, imatrix | 4.50 | 4.24 MB | 0.00500 ± 0.00020 | 1.23456 | 99.1% |",
    ]


def test_without_marks(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "demo-presets-2025-01-01.json").write_text(json.dumps({"rows": [row("Q4_0", 4.5, 1)]}))
    (tmp_path / "page.md").write_text("# Title\n")
    assert tool.main([]) == 1
    assert "<!-- demo:start -->" in capsys.readouterr().err


def test_a_fit_beats_the_preset_in_what_was_measured() -> None:
    newest = sorted((ROOT / "bench" / "results").glob("demo-presets-*.json"))[-1]
    rows = {r["name"]: r for r in json.loads(newest.read_text())["rows"]}
    better = {"": ["Q4_K_S"], ", imatrix": ["Q4_K_M", "Q4_K_M, imatrix", "Q4_K_S, imatrix"]}
    for end, presets in better.items():
        fit = rows[f"--target-bpw 4.5{end}"]
        for preset in presets:
            assert fit["file_bytes"] < rows[preset]["file_bytes"]
            assert fit["kl"][0] < rows[preset]["kl"][0]
