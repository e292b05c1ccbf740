"""docs/checkpoints.md has the schemes as the code has them, and figures from the newest result file."""

from __future__ import annotations

import json
from pathlib import Path

from octavo.huggingface.schemes import CHECKPOINT_SCHEMES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "checkpoints.md").read_text()


def test_figures_are_those_of_the_result_file() -> None:
    newest = sorted((ROOT / "bench" / "results").glob("demo-schemes-*.json"))[-1]
    for row in json.loads(newest.read_text())["rows"]:
        told = (
            f"| {row['name']} | {row['file_bytes'] / 1e6:.2f} MB | {row['bits_per_weight']:.2f} "
            f"| {row['kl'][0]:.5f} ± {row['kl'][1]:.5f} | {row['same_top'][0]:.2%} | {row['accuracy']:.1%} |"
        )
        assert told in TEXT


def test_every_scheme_and_its_layout_is_told() -> None:
    for scheme in CHECKPOINT_SCHEMES.values():
        assert f"| `{scheme.name}` | {scheme.layouts[0]} |" in TEXT
        assert scheme.row in TEXT
