"""docs/quantize.md lists every preset, alias and fallback as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.quantizers.mix.presets import ALIASES, FALLBACKS, PRESETS

TEXT = (Path(__file__).parents[2] / "docs" / "quantize.md").read_text()


def test_every_preset_has_a_row() -> None:
    first = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| ") and line.count("|") == 6]
    named = [name for cell in first for name in re.findall(r"[A-Z][A-Z0-9_]+", re.sub(r"\(.*\)", "", cell))]
    assert sorted(named) == sorted(p.name for p in PRESETS)
    assert {alias for cell in first for alias in re.findall(r"\((\w+)\)", cell)} == set(ALIASES)


def test_fallbacks_are_told() -> None:
    told = " ".join(TEXT.split())
    for fmt, other in FALLBACKS.items():
        assert re.search(rf"{other} for (\w+ and )?{fmt}\b", told), fmt
